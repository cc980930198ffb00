"""The parent's end of a worker: starting it, talking to it, and ending it whatever state it is in."""

import logging
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from rollcast.actor.environments.failures import EnvironmentFailedError, EnvironmentLostError, FailureReport
from rollcast.actor.vector.arrays import EnvironmentArrays
from rollcast.actor.vector.bell import N_WORDS, Bell, Operation, PeerGoneError, Result, Word, parent_bell
from rollcast.actor.vector.child import ChildPlan, MemoryLayout, run_child
from rollcast.actor.vector.environment_group import GroupDescription
from rollcast.actor.vector.shared_memory import SharedMemory
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.interrupts import interrupts_held_back

logger = logging.getLogger(__name__)

# How long the kernel may take to end a process that was killed.
_KILLED_S = 5.0


class ChildProcess:
    """One process with the environments `first_index` to `first_index + n_envs - 1`. The parent's thread uses it.

    Args:
        context: How processes are started.
        plan: What it does.
        n_envs: How many environments it has.
        timeout_s: How long it may take for anything; None: for ever.

    Raises:
        ConfigurationError: The factories cannot be sent to a process.
    """

    def __init__(self, context: BaseContext, plan: ChildPlan, n_envs: int, timeout_s: float | None) -> None:
        self.indices = range(plan.first_index, plan.first_index + n_envs)
        self._timeout_s = timeout_s
        # adding to an enum costs more than looking at a word
        self._operation_at = plan.worker * N_WORDS + int(Word.OPERATION)
        self._result_at = plan.worker * N_WORDS + int(Word.RESULT)
        self._progress_at = plan.worker * N_WORDS + int(Word.PROGRESS)
        self._worker = plan.worker
        self._number = 0
        self._hangs = False
        self._bell: Bell | None = None
        self._bell_connection, bell = context.Pipe()
        self._messages, messages = context.Pipe()
        self._process: BaseProcess | None = context.Process(  # type: ignore[attr-defined]
            target=run_child, args=(plan, bell, messages), name=f"rollcast-environments-{plan.worker}", daemon=True
        )
        try:
            _start(self._process)
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            self._process = None
            self.end(0.0)
            raise ConfigurationError(
                f"the environment factories {plan.env_factories.fn!r} cannot be sent to a process: {error}; expected "
                "functions or classes that can be copied; keep files, locks and the like out of them"
            ) from error
        except BaseException:
            self._process = None
            self.end(0.0)
            raise
        finally:
            bell.close()
            messages.close()

    @property
    def pid(self) -> int | None:
        """The number of the process, or None if it has been ended."""
        return self._process.pid if self._process is not None else None

    def describe(self) -> GroupDescription:
        """Waits until the environments are made.

        Raises:
            EnvironmentFailedError: One could not be made.
            EnvironmentLostError: The process has ended, or it takes too long.
        """
        report = self._receive(Connection.recv_bytes, "make")
        if report:
            raise _failure(report)
        description: GroupDescription = self._receive(Connection.recv, "make")
        return description

    def attach(self, memory: SharedMemory, layout: MemoryLayout) -> None:
        """Gives it the memory."""
        words, self._arrays = layout.lay_out(memory)
        self._words = words
        assert self._process is not None
        assert self._process.pid is not None
        self._bell = parent_bell(words, self._worker, self._bell_connection, self._process.sentinel)
        try:
            memory.send(self._messages, self._process.pid)
            self._messages.send(layout)
        except OSError as error:
            raise self._lost("make") from error

    def begin(self, operation: Operation, argument: object = None) -> None:
        """Tells it what to do; `finish` waits until it is done.

        Args:
            operation: What.
            argument: What it needs beside arrays.

        Raises:
            EnvironmentLostError: The process has ended.
        """
        assert self._bell is not None
        self._words[self._operation_at] = operation
        self._number += 1
        try:
            self._bell.tell(self._number)
            if argument is not None:
                self._messages.send(argument)
        except (PeerGoneError, BrokenPipeError, ConnectionResetError) as error:
            raise self._lost(operation.name.lower()) from error

    def finish(self, operation: Operation, timeout_s: float | None = None) -> Any:  # noqa: ANN401 - what a call returned
        """Waits until it is done.

        Args:
            operation: What it was told to do.
            timeout_s: How long to wait; None: as the constructor was told.

        Returns:
            What it sent beside arrays, or None.

        Raises:
            EnvironmentFailedError: An environment raised.
            EnvironmentLostError: The process has ended, or does not answer.
        """
        assert self._bell is not None
        try:
            if not self._bell.hear(self._number - 1, self._timeout_s if timeout_s is None else timeout_s):
                raise self._hung(operation.name.lower())
        except PeerGoneError as error:
            raise self._lost(operation.name.lower()) from error
        result = self._words[self._result_at]
        if result == Result.NOTHING_TO_ADD:
            return None
        if result == Result.MESSAGE:
            return self._receive(Connection.recv, operation.name.lower())
        raise _failure(self._receive(Connection.recv_bytes, operation.name.lower()))

    @property
    def awaited(self) -> tuple[Bell, int]:
        """For `hear_any`."""
        assert self._bell is not None
        return self._bell, self._number - 1

    def ask_to_end(self) -> None:
        """Asks it to close its environments and end, if it still can."""
        if self._bell is not None:
            self._words[self._operation_at] = Operation.CLOSE
            self._number += 1
            with suppress(PeerGoneError):
                self._bell.tell(self._number)
        # Whoever sleeps sees the end of the pipe; whoever waits to send gives up.
        self._bell_connection.close()
        self._messages.close()

    def end(self, grace_s: float) -> None:
        """Sees to it that the process is gone.

        Args:
            grace_s: How long one that does not hang has for it.
        """
        self.ask_to_end()
        self._bell = None
        process, self._process = self._process, None
        if process is None:
            return
        process.join(0.0 if self._hangs else grace_s)
        if process.exitcode is None:
            if not self._hangs:
                logger.warning("environments %s did not close within %.1f s: killed", _span(self.indices), grace_s)
            process.kill()
            process.join(_KILLED_S)
        if process.exitcode is None:  # the kernel holds it, in a system call that no signal ends
            logger.error("environments %s cannot be killed: process %d is left", _span(self.indices), process.pid)
            return
        process.close()

    def _receive(self, receive: Callable[[Connection], Any], doing: str) -> Any:  # noqa: ANN401
        try:
            if not self._messages.poll(self._timeout_s):
                raise self._hung(doing)
            return receive(self._messages)
        except (EOFError, ConnectionResetError) as error:
            raise self._lost(doing) from error

    def _busy_with(self) -> tuple[int, int | None]:
        """The environment that it is or was busy with, and its seed."""
        arrays: EnvironmentArrays | None = getattr(self, "_arrays", None)
        if arrays is None:
            return self.indices[0], None
        index = int(self._words[self._progress_at])
        index = index if index in self.indices else self.indices[0]
        seed = int(arrays.seed[index])
        return index, seed if seed >= 0 else None

    def _hung(self, doing: str) -> EnvironmentLostError:
        self._hangs = True
        index, seed = self._busy_with()
        return EnvironmentLostError(
            f"has not returned from {doing}() within {self._timeout_s} s; expected it to return; mend the environment, "
            "or give it more time with timeout_s",
            env_index=index,
            env_seed=seed,
        )

    def _lost(self, doing: str) -> EnvironmentLostError:
        assert self._process is not None
        # the pipe closes a moment before the process is gone
        self._process.join(1.0)
        index, seed = self._busy_with()
        return EnvironmentLostError(
            f"was in {doing}() when its process, with environments {_span(self.indices)}, ended "
            f"{_manner(self._process.exitcode)}; expected it to live until close(); look for what killed it, memory "
            "perhaps, or for an environment that ends its process",
            env_index=index,
            env_seed=seed,
        )


def _start(process: BaseProcess) -> None:
    """Starts a process, also from one that multiprocessing will end with its own parent, as an actor is.

    Python forbids that because such children would be left behind; ours end themselves when their parent is gone.
    """
    current = multiprocessing.current_process()
    was_daemon = current.daemon
    if was_daemon:
        current.daemon = False
    try:
        with interrupts_held_back():
            process.start()
    finally:
        if was_daemon:
            current.daemon = True


def _failure(report: bytes) -> EnvironmentFailedError:
    failure = EnvironmentFailedError(FailureReport.from_json(report))
    failure.add_note(f"In the environment's process:\n{failure.exception_traceback}")
    return failure


def _manner(exitcode: int | None) -> str:
    if exitcode is None:
        return "or closed its pipe"
    return f"by signal {-exitcode}" if exitcode < 0 else f"with exit code {exitcode}"


def _span(indices: range) -> str:
    return f"{indices[0]} to {indices[-1]}" if len(indices) > 1 else str(indices[0])
