"""Local actor processes: started, watched, restarted with backoff, ended."""

import json
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, ForkServerContext
from multiprocessing.process import BaseProcess

import torch

from actor.backoff import backoff_delays
from actor.local_process import LocalActorPlan, run_local_actor
from learner.actors.forkserver import start_forkserver
from services.errors import ConfigurationError

logger = logging.getLogger(__name__)

# An actor that lived this long has recovered: its next failure is its first again.
_RECOVERED_S = 60.0


def multiprocessing_context(start_method: str | None) -> BaseContext:
    """The context for a start method; by default forkserver where there is one, else spawn.

    Raises:
        ConfigurationError: There is no such method here, or it is fork and CUDA is in use.
    """
    available = multiprocessing.get_all_start_methods()
    method = start_method or ("forkserver" if "forkserver" in available else "spawn")
    if method not in available:
        raise ConfigurationError(f"start_method is {method!r}; expected one of {available}")
    if method == "fork" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigurationError("start_method is 'fork', but CUDA is in use: a fork cannot use it; use 'forkserver'")
    return multiprocessing.get_context(method)


@dataclass(slots=True)
class _LocalActor:
    plan: LocalActorPlan
    process: BaseProcess | None
    failures: Connection | None
    started: float
    delays: Iterator[float]
    n_failures: int = 0
    restart_at: float | None = None


class LocalProcesses:
    """A fixed set of local actors. Used by one thread, which calls `look_after` now and then.

    Args:
        plans: One an actor.
        start_method: Of multiprocessing; None: the best there is.
        max_restarts: How often an actor may fail in a row before `look_after` reports it as lost for good.
        on_exit: Called with the actor's name and what is known of its end, for every process that ended unasked.
    """

    def __init__(
        self,
        plans: list[LocalActorPlan],
        *,
        start_method: str | None,
        max_restarts: int,
        on_exit: Callable[[str, str], None],
    ) -> None:
        self._context = multiprocessing_context(start_method)
        self._max_restarts = max_restarts
        self._on_exit = on_exit
        self._actors = [_LocalActor(plan, None, None, 0.0, backoff_delays()) for plan in plans]
        if isinstance(self._context, ForkServerContext):
            start_forkserver()

    def start(self) -> None:
        """Starts every actor."""
        for actor in self._actors:
            self._launch(actor)

    @property
    def processes(self) -> list[BaseProcess]:
        """Those that were started and not yet found ended."""
        return [actor.process for actor in self._actors if actor.process is not None]

    def look_after(self) -> tuple[str, str] | None:
        """Restarts what has ended, when its backoff has passed.

        Returns:
            `(actor_id, what happened)` of an actor that has failed more than `max_restarts` times in a row; None while
            there is none.
        """
        now = time.monotonic()
        for actor in self._actors:
            if actor.process is not None and actor.process.exitcode is not None:
                report = self._bury(actor)
                if now - actor.started > _RECOVERED_S:
                    actor.n_failures, actor.delays = 0, backoff_delays()
                actor.n_failures += 1
                self._on_exit(actor.plan.actor_id, report)
                if actor.n_failures > self._max_restarts:
                    return actor.plan.actor_id, f"{report} (failure {actor.n_failures} in a row)"
                actor.restart_at = now + next(actor.delays)
                logger.warning("%s ended: %s; starting it again", actor.plan.actor_id, report.splitlines()[0])
            elif actor.restart_at is not None and now >= actor.restart_at:
                self._launch(actor)
        return None

    def stop(self, timeout_s: float) -> None:
        """Ends every actor: asks, waits `timeout_s` together, then kills. Idempotent."""
        for actor in self._actors:
            actor.restart_at = None
            if actor.process is not None and actor.process.exitcode is None:
                actor.process.terminate()
        deadline = time.monotonic() + timeout_s
        for actor in self._actors:
            if actor.process is None:
                continue
            actor.process.join(max(0.0, deadline - time.monotonic()))
            if actor.process.exitcode is None:
                logger.warning("%s did not end within %.1f s; killing it", actor.plan.actor_id, timeout_s)
                actor.process.kill()
                actor.process.join(timeout_s)
            self._bury(actor)

    def _launch(self, actor: _LocalActor) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_local_actor, args=(actor.plan, sender), name=f"rollcast-{actor.plan.actor_id}", daemon=True
        )
        try:
            process.start()
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            receiver.close()
            raise ConfigurationError(
                f"the environment factory {actor.plan.env_factory!r} cannot be sent to a process: {error}; use a "
                "function or class at the top of a module, not a lambda or a closure"
            ) from error
        finally:
            sender.close()
        actor.process, actor.failures = process, receiver
        actor.started, actor.restart_at = time.monotonic(), None

    @staticmethod
    def _bury(actor: _LocalActor) -> str:
        """Reads why the process ended and lets go of it."""
        process, failures = actor.process, actor.failures
        assert process is not None
        assert failures is not None
        report = (
            f"exit code {process.exitcode}" if (process.exitcode or 0) >= 0 else f"signal {-(process.exitcode or 0)}"
        )
        try:
            if failures.poll():
                told = json.loads(failures.recv_bytes())
                report = f"{told['exception_type']}: {told['message']}\n{told['traceback']}"
        except (EOFError, OSError):
            pass
        failures.close()
        process.close()
        actor.process = actor.failures = None
        return report
