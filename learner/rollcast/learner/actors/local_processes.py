"""Starts local actor processes, watches them, restarts them with backoff, and ends them."""

import dataclasses
import json
import logging
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Final

import torch

from rollcast.actor.acting.local_process import LocalActorPlan, run_local_actor
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.learner.actors.forkserver import start_forkserver
from rollcast.learner.actors.supervision import ActorEnd, Supervision
from rollcast.services.errors import ConfigurationError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.process.child_lines import ChildLines
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.process.socket_paths import short_temporary_paths

logger = logging.getLogger(__name__)

# The time that a killed process may take to end.
_KILL_TIMEOUT_S = 3.0


def multiprocessing_context(start_method: str | None) -> BaseContext:
    """Returns multiprocessing's context for a start method; None: forkserver if available, else spawn.

    Raises:
        ConfigurationError: The method is not available here, or it is fork and CUDA is in use.
    """
    available = multiprocessing.get_all_start_methods()
    method = start_method or ("forkserver" if "forkserver" in available else "spawn")
    if method not in available:
        raise ConfigurationError(f"start_method is {method!r}; expected one of {available}")
    if method == "fork" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigurationError("start_method is 'fork', but CUDA is in use: a fork cannot use it; use 'forkserver'")
    return multiprocessing.get_context(method)


def text_pipe() -> tuple[Connection, Connection]:
    """Returns the read and the write end of a pipe; the plan of a process may contain the write end."""
    return multiprocessing.Pipe(duplex=False)


class _LocalActor:
    """An actor and its present process, if any."""

    def __init__(self, plan: LocalActorPlan, context: BaseContext, lines: ChildLines) -> None:
        self.actor_id: Final = plan.actor_id
        self._plan = plan
        self._context = context
        self._lines = lines
        self._failures: Connection | None = None
        self.process: BaseProcess | None = None

    def launch(self) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_local_actor,
            args=(dataclasses.replace(self._plan, stderr=self._lines.sender()), sender),
            name=f"rollcast-{self.actor_id}",
            daemon=True,
        )
        try:
            with interrupts_held_back(), short_temporary_paths():
                process.start()
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            receiver.close()
            raise ConfigurationError(
                f"the environment factory {self._plan.env_factory!r} cannot be sent to a process: {error}; use a "
                "function or class at the top of a module, not a lambda or a closure"
            ) from error
        finally:
            sender.close()
        self.process, self._failures = process, receiver

    def take_end(self) -> ActorEnd | None:
        process, failures = self.process, self._failures
        if process is None or process.exitcode is None:
            return None
        assert failures is not None
        may_recover, failure = True, None
        # Without a report, the process has not come to its work.
        may_be_repeated = process.exitcode == 1
        report = f"exit code {process.exitcode}" if process.exitcode >= 0 else f"signal {-process.exitcode}"
        if may_be_repeated:
            report += (
                " before it could begin; expected that it can import the environment factory and the program; define "
                'the factory in a file, not in a notebook, and start below `if __name__ == "__main__":`'
            )
        try:
            if failures.poll():
                told = json.loads(failures.recv_bytes())
                may_recover = not told.pop("is_permanent")
                failure = ActorFailure(**told)
                report = f"{failure.exception_type}: {failure.message}"
                may_be_repeated = failure.exception_type == EnvironmentFailedError.__name__
        except (EOFError, OSError):
            pass
        failures.close()
        process.close()
        self.process = self._failures = None
        return ActorEnd(report, may_recover=may_recover, may_be_repeated=may_be_repeated, failure=failure)


class LocalProcesses(Supervision):
    """A fixed set of local actors. Used by one thread, which calls `look_after` repeatedly.

    Args:
        plans: One plan for each actor.
        start_method: See `multiprocessing_context`.
        max_restarts: The number of consecutive failures after which an actor is not restarted.
        on_exit: Called with the actor's name and its end for every process that ended unexpectedly.
        has_rollouts: See `Supervision`.
    """

    def __init__(
        self,
        plans: list[LocalActorPlan],
        *,
        start_method: str | None,
        max_restarts: int,
        on_exit: Callable[[str, ActorEnd], None],
        has_rollouts: Callable[[], bool] = lambda: True,
    ) -> None:
        context = multiprocessing_context(start_method)
        self._lines = ChildLines()
        self._actors = [_LocalActor(plan, context, self._lines) for plan in plans]
        super().__init__(self._actors, max_restarts=max_restarts, on_exit=on_exit, has_rollouts=has_rollouts)
        if isinstance(context, ForkServerContext):
            start_forkserver()

    @property
    def processes(self) -> list[BaseProcess]:
        """The started processes whose end is not known yet."""
        return [actor.process for actor in self._actors if actor.process is not None]

    def stop(self, timeout_s: float) -> None:
        """Ends all actors: asks them to end, waits, then kills those that still run. Idempotent.

        Args:
            timeout_s: The seconds to wait for all actors together.
        """
        for process in self.processes:
            if process.exitcode is None:
                process.terminate()
        deadline = time.monotonic() + timeout_s
        for actor in self._actors:
            if actor.process is None:
                continue
            actor.process.join(max(0.0, deadline - time.monotonic()))
            if actor.process.exitcode is None:
                logger.warning("%s did not end within %.1f s; killing it", actor.actor_id, timeout_s)
                actor.process.kill()
                actor.process.join(_KILL_TIMEOUT_S)
            actor.take_end()
        self._lines.close()
