"""Starts, commands and ends a child process of a `SubprocVectorEnv`, from the parent."""

import logging
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import register_after_fork
from typing import Any

from rollcast.actor.environments.failures import EnvironmentFailedError, EnvironmentLostError, FailureReport
from rollcast.actor.vector.arrays import EnvironmentArrays
from rollcast.actor.vector.child import ChildPlan, MemoryLayout, cannot_be_sent, run_child
from rollcast.actor.vector.doorbell import N_WORDS, Doorbell, Operation, PeerGoneError, Result, WordIndex
from rollcast.actor.vector.environment_group import GroupDescription
from rollcast.actor.vector.shared_memory import SharedMemory
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.process.socket_paths import short_temporary_paths

logger = logging.getLogger(__name__)

# Time for the kernel to end a killed process, in seconds.
_KILLED_S = 5.0


class ChildProcess:
    """The parent's handle of a child process that steps a range of the vector's environments. For one thread.

    Args:
        context: The start method of the process.
        plan: The child's arguments.
        n_envs: The number of the child's environments.
        timeout_s: The time limit for a command, in seconds; None: no limit.

    Raises:
        ConfigurationError: If the factories cannot be sent to a process.

    Attributes:
        indices: The indices of the child's environments in the vector.
    """

    def __init__(self, context: BaseContext, plan: ChildPlan, n_envs: int, timeout_s: float | None) -> None:
        self.indices = range(plan.first_index, plan.first_index + n_envs)
        self._timeout_s = timeout_s
        # Computed once: adding to an enum costs more than reading a word.
        self._operation_at = plan.child * N_WORDS + int(WordIndex.OPERATION)
        self._result_at = plan.child * N_WORDS + int(WordIndex.RESULT)
        self._progress_at = plan.child * N_WORDS + int(WordIndex.PROGRESS)
        self._child = plan.child
        self._number = 0
        self._hangs = False
        self._doorbell: Doorbell | None = None
        self._doorbell_connection, doorbell = context.Pipe()
        self._messages, messages = context.Pipe()
        # Otherwise a child would hold its parent's ends, and those of earlier children, and never see them closed.
        register_after_fork(self, ChildProcess._close_connections)
        self._process: BaseProcess | None = context.Process(  # type: ignore[attr-defined]
            target=run_child, args=(plan, doorbell, messages), name=f"rollcast-environments-{plan.child}", daemon=True
        )
        try:
            _start(self._process)
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            self._process = None
            self.end(0.0)
            raise ConfigurationError(
                f"the environment factories {plan.env_factories.fn!r} cannot be sent to a process: {error}; expected "
                "functions or classes that can be pickled; remove files, locks and similar objects from the factories"
            ) from error
        except BaseException:
            self._process = None
            self.end(0.0)
            raise
        finally:
            doorbell.close()
            messages.close()

    @property
    def pid(self) -> int | None:
        """The process id; None after `end`."""
        return self._process.pid if self._process is not None else None

    def describe(self) -> GroupDescription:
        """Waits until the environments are made, and returns their properties.

        Raises:
            EnvironmentFailedError: If an environment cannot be made.
            EnvironmentLostError: If the process has ended, or takes too long.
        """
        report = self._receive(Connection.recv_bytes, "make")
        if report:
            raise _failure(report)
        sent = self._receive(Connection.recv_bytes, "make")
        description: GroupDescription = self._unpickled(sent, "the description of its spaces", "make", self.indices[0])
        return description

    def attach(self, memory: SharedMemory, layout: MemoryLayout) -> None:
        """Sends the shared memory to the child."""
        words, self._arrays = layout.lay_out(memory)
        self._words = words
        assert self._process is not None
        assert self._process.pid is not None
        self._doorbell = Doorbell(words, self._child, self._doorbell_connection, self._process.sentinel)
        try:
            memory.send(self._messages, self._process.pid)
            self._messages.send(layout)
        except OSError as error:
            raise self._lost("make") from error

    def begin(self, operation: Operation, argument: bytes | None = None) -> None:
        """Starts an operation in the child; `finish` waits for its end.

        Args:
            operation: The operation.
            argument: The operation's arguments besides the arrays, pickled.

        Raises:
            EnvironmentLostError: If the process has ended.
        """
        assert self._doorbell is not None
        self._words[self._operation_at] = operation
        self._number += 1
        try:
            self._doorbell.tell(self._number)
            if argument is not None:
                self._messages.send_bytes(argument)
        except (PeerGoneError, BrokenPipeError, ConnectionResetError) as error:
            raise self._lost(operation.name.lower()) from error

    def finish(self, operation: Operation, timeout_s: float | None = None) -> dict[int, Any] | None:
        """Waits for the end of an operation.

        Args:
            operation: The operation that was started.
            timeout_s: The longest wait, in seconds; None: the constructor's limit.

        Returns:
            The results besides the arrays, by index of the environment; None: no further results.

        Raises:
            EnvironmentFailedError: If an environment raised, or its result cannot be unpickled.
            EnvironmentLostError: If the process has ended, or does not answer.
        """
        assert self._doorbell is not None
        try:
            if not self._doorbell.hear(self._number - 1, self._timeout_s if timeout_s is None else timeout_s):
                raise self._hung(operation.name.lower())
        except PeerGoneError as error:
            raise self._lost(operation.name.lower()) from error
        result = self._words[self._result_at]
        if result == Result.NOTHING_TO_ADD:
            return None
        if result == Result.MESSAGE:
            parts: dict[int, bytes] = self._receive(Connection.recv, operation.name.lower())
            what = "the result" if operation is Operation.CALL else "its info"
            return {index: self._unpickled(part, what, operation.name.lower(), index) for index, part in parts.items()}
        raise _failure(self._receive(Connection.recv_bytes, operation.name.lower()))

    @property
    def awaited(self) -> tuple[Doorbell, int]:
        """The doorbell and the last known number of a finished command, for `hear_any`."""
        assert self._doorbell is not None
        return self._doorbell, self._number - 1

    def ask_to_end(self) -> None:
        """Asks the child to close its environments and end, if the child still reads commands."""
        if self._doorbell is not None:
            self._words[self._operation_at] = Operation.CLOSE
            self._number += 1
            with suppress(PeerGoneError):
                self._doorbell.tell(self._number)
        # A sleeping child wakes at the end of the pipe. A child that waits to send gets an error.
        self._close_connections()

    def end(self, grace_s: float) -> None:
        """Ends the process, and kills it after `grace_s`.

        Args:
            grace_s: The time that the process has to end, in seconds. A hanging process is killed at once.
        """
        self.ask_to_end()
        self._doorbell = None
        process, self._process = self._process, None
        if process is None:
            return
        process.join(0.0 if self._hangs else grace_s)
        if process.exitcode is None:
            if not self._hangs:
                logger.warning("environments %s did not close within %.1f s: killed", _span(self.indices), grace_s)
            process.kill()
            process.join(_KILLED_S)
        if process.exitcode is None:  # it is in a system call that no signal ends
            logger.error("environments %s cannot be killed: process %d still runs", _span(self.indices), process.pid)
            return
        process.close()

    def _close_connections(self) -> None:
        self._doorbell_connection.close()
        self._messages.close()

    def _receive(self, receive: Callable[[Connection], Any], doing: str) -> Any:  # noqa: ANN401
        try:
            if not self._messages.poll(self._timeout_s):
                raise self._hung(doing)
            return receive(self._messages)
        except (EOFError, ConnectionResetError) as error:
            raise self._lost(doing) from error

    def _unpickled(self, sent: bytes, what: str, doing: str, index: int) -> Any:  # noqa: ANN401 - what an environment told
        try:
            return ForkingPickler.loads(sent)
        except Exception as error:  # noqa: BLE001 - what the object that was sent raises
            problem = cannot_be_sent(what, error)
            report = FailureReport.of(problem, doing=doing, env_index=index, env_seed=self._seed_of(index))
            # Without a cause, like other failures in the environment's process.
            raise EnvironmentFailedError(report) from None

    def _busy_with(self) -> tuple[int, int | None]:
        """Returns the environment in which the child works or last worked, and its seed."""
        if not hasattr(self, "_words"):
            return self.indices[0], None
        index = int(self._words[self._progress_at])
        index = index if index in self.indices else self.indices[0]
        return index, self._seed_of(index)

    def _seed_of(self, index: int) -> int | None:
        arrays: EnvironmentArrays | None = getattr(self, "_arrays", None)
        seed = -1 if arrays is None else int(arrays.seed[index])
        return seed if seed >= 0 else None

    def _hung(self, doing: str) -> EnvironmentLostError:
        self._hangs = True
        index, seed = self._busy_with()
        return EnvironmentLostError(
            f"has not returned from {doing}() within {self._timeout_s} s; expected it to return; correct the "
            "environment, or raise timeout_s",
            env_index=index,
            env_seed=seed,
        )

    def _lost(self, doing: str) -> EnvironmentLostError:
        assert self._process is not None
        # The pipe closes a moment before the process ends.
        self._process.join(1.0)
        index, seed = self._busy_with()
        return EnvironmentLostError(
            f"was in {doing}() when its process, with environments {_span(self.indices)}, ended "
            f"{_manner(self._process.exitcode)}; expected it to run until close(); "
            f"{_advice(self._process.exitcode, doing)}",
            env_index=index,
            env_seed=seed,
        )


def _start(process: BaseProcess) -> None:
    """Starts a process, even from a daemonic process such as a local actor.

    Python forbids this because such children would outlive their parent. Ours end with their parent.
    """
    current = multiprocessing.current_process()
    was_daemon = current.daemon
    if was_daemon:
        current.daemon = False
    try:
        with interrupts_held_back(), short_temporary_paths():
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


def _advice(exitcode: int | None, doing: str) -> str:
    if exitcode == 1 and doing == "make":  # a traceback
        return (
            "its output shows the reason: perhaps an import of the program makes the vector; put this code below "
            '`if __name__ == "__main__":`'
        )
    if exitcode == 1:
        return "its output shows the reason; correct the environment"
    return "find out whether lack of memory, another program or an environment ended the process"


def _span(indices: range) -> str:
    return f"{indices[0]} to {indices[-1]}" if len(indices) > 1 else str(indices[0])
