"""The child processes of a `SubprocVectorEnv`. Each child steps some of the vector's environments."""

import logging
import multiprocessing
import os
import select
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gymnasium import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from rollcast.actor.environments.failures import EnvironmentFailedError, FailureReport
from rollcast.actor.environments.returned_values import InvalidValueError
from rollcast.actor.vector.arrays import Buffer, EnvironmentArrays
from rollcast.actor.vector.doorbell import N_WORDS, Doorbell, Operation, PeerGoneError, Result, WordIndex
from rollcast.actor.vector.environment_group import EnvFactory, EnvironmentGroup, EnvironmentInfos
from rollcast.actor.vector.shared_memory import SharedMemory
from rollcast.services.errors import message_of
from rollcast.services.process.stop_signals import ignore_terminal

logger = logging.getLogger(__name__)

# Time for an environment to finish after the parent has died, in seconds; then the process is ended.
_ORPHAN_GRACE_S = 2.0

Handler = Callable[[], Any]


class SentFactories(CloudpickleWrapper):
    """Factories for a child process. Closures can be sent, too. The child unpickles the factories in `load`.

    So an error in unpickling counts as an error in making the environments, and does not end the process.
    """

    def __setstate__(self, ob: bytes) -> None:
        self._sent = ob

    def load(self) -> Sequence[EnvFactory]:
        """Returns the factories.

        Raises:
            Exception: An exception of an object that was unpickled.
        """
        if not hasattr(self, "fn"):  # a forked process has them already
            super().__setstate__(self._sent)
        sent: Any = self.fn  # gymnasium types it as one factory
        factories: Sequence[EnvFactory] = sent
        return factories


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """The arguments of a child process.

    Attributes:
        env_factories: The factories of the child's environments.
        first_index: The index of the child's first environment in the vector.
        autoreset_mode: The time of an environment's reset, as in gymnasium.
        info_keys: The keys of infos that the child sends to the parent; None: all keys.
        child: The child's number, from 0.
        parent_pid: The parent's process id. The child ends with the parent.
    """

    env_factories: SentFactories
    first_index: int
    autoreset_mode: AutoresetMode
    info_keys: Collection[str] | None
    child: int
    parent_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """The layout of the shared memory. The parent sends the layout through the pipe, after the memory.

    Attributes:
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        n_envs: The number of environments in the whole vector.
        n_children: The number of child processes of the whole vector.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    n_envs: int
    n_children: int

    def n_bytes(self) -> int:
        """Returns the size of the memory in bytes."""
        return self._words_bytes() + EnvironmentArrays.n_bytes(self.observation_space, self.action_space, self.n_envs)

    def lay_out(self, memory: SharedMemory) -> tuple[memoryview, EnvironmentArrays]:
        """Returns the control words and the arrays in the memory."""
        buffer = Buffer(memory.buffer)
        buffer.take((self.n_children * N_WORDS,), "int64")
        words = memoryview(memory.buffer)[: self._words_bytes()].cast("q")
        return words, EnvironmentArrays(self.observation_space, self.action_space, self.n_envs, buffer)

    def _words_bytes(self) -> int:
        return self.n_children * N_WORDS * 8


def run_child(plan: ChildPlan, doorbell: Connection, messages: Connection) -> None:
    """Steps environments in the child process, until the parent closes them or ends.

    Args:
        plan: The arguments.
        doorbell: The connection on which parent and child wake each other.
        messages: The connection for all other messages: descriptions, calls, infos, failures as JSON.
    """
    # The parent decides when its environments end.
    ignore_terminal()
    # Environments may start processes, which Python forbids in daemonic ones.
    multiprocessing.current_process().daemon = False
    threading.Thread(
        target=_end_with_parent, args=(plan.parent_pid,), name="rollcast-parent-watch", daemon=True
    ).start()
    try:
        _serve(plan, doorbell, messages)
    except (PeerGoneError, EOFError, BrokenPipeError, ConnectionResetError):
        logger.debug("child %d: the parent has ended", plan.child)


def _serve(plan: ChildPlan, doorbell: Connection, messages: Connection) -> None:
    try:
        env_factories = plan.env_factories.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what the factories hold raises anything
        report = FailureReport.of(error, doing="make", env_index=plan.first_index, env_seed=None)
        messages.send_bytes(report.to_json())
        return
    try:
        group = EnvironmentGroup(env_factories, plan.first_index, plan.autoreset_mode, plan.info_keys)
    except EnvironmentFailedError as error:
        messages.send_bytes(error.report.to_json())
        return
    try:
        try:
            description = ForkingPickler.dumps(group.describe())
        except Exception as error:  # noqa: BLE001 - an environment's metadata or spaces raise anything
            report = FailureReport.of(error, doing="describe", env_index=plan.first_index, env_seed=None)
            messages.send_bytes(report.to_json())
            return
        messages.send_bytes(b"")
        messages.send_bytes(description)
        memory = SharedMemory.receive(messages)
        layout: MemoryLayout = messages.recv()
        words, arrays = layout.lay_out(memory)
        memory.close()
        group.attach(arrays, words, plan.child * N_WORDS + WordIndex.PROGRESS)
        _obey(plan.child, group, words, doorbell, messages)
    finally:
        group.close()


def _obey(child: int, group: EnvironmentGroup, words: memoryview, connection: Connection, messages: Connection) -> None:
    """Executes the parent's commands until the parent closes the environments."""
    doorbell = Doorbell(words, child, connection)
    base = child * N_WORDS
    command_at, operation_at, result_at = base + WordIndex.COMMAND, base + WordIndex.OPERATION, base + WordIndex.RESULT
    handlers: dict[int, Handler] = {
        Operation.STEP: group.step,
        Operation.RESET: lambda: group.reset(*messages.recv()),
        Operation.CALL: lambda: group.call(*messages.recv()),
        Operation.SET_ATTR: lambda: group.set_attr(*messages.recv()),
    }
    done = 0
    while True:
        doorbell.hear(done)
        done, operation = words[command_at], words[operation_at]
        if operation == Operation.CLOSE:
            return
        message: bytes | memoryview | None = None
        result = Result.NOTHING_TO_ADD
        try:
            told = handlers[operation]()
            if told:
                message = _pickled(told, group, Operation(operation).name.lower())
                result = Result.MESSAGE
        except EnvironmentFailedError as error:
            message = error.report.to_json()
            result = Result.FAILED
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001 - an argument that cannot be read here
            report = FailureReport.of(error, doing=Operation(operation).name.lower(), env_index=None, env_seed=None)
            message = report.to_json()
            result = Result.FAILED
        words[result_at] = result
        # The doorbell first: sending a message larger than the pipe waits until the parent reads.
        doorbell.tell(done)
        if message is not None:
            messages.send_bytes(message)


def _pickled(told: dict[int, Any] | list[Any], group: EnvironmentGroup, doing: str) -> memoryview:
    """Pickles an answer with a part for each environment. An error names the environment of a failing part.

    Each part is pickled alone, so that the parent can name the environment whose part it cannot unpickle.
    """
    parts: dict[int, bytes] = {}
    for index, part in told.items() if isinstance(told, dict) else enumerate(told, group.first_index):
        with group.naming(index, doing):
            parts[index] = _pickled_part(part)
    return ForkingPickler.dumps(parts)


def _pickled_part(part: object) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(part))
    except Exception as error:
        what = "its info" if isinstance(part, EnvironmentInfos) else "the result"
        raise cannot_be_sent(what, error) from error


def cannot_be_sent(what: str, error: Exception) -> InvalidValueError:
    """Makes the error about a value that cannot travel between an environment's process and its parent."""
    return InvalidValueError(
        f"{what} cannot be sent to another process: {message_of(error)}; expected values that can be pickled; remove "
        "all other values, or step the environments in this process: vectorization 'sync', SequentialVectorEnv"
    )


def _end_with_parent(parent_pid: int) -> None:
    """Thread: ends this process when its parent has ended, even if an environment hangs."""
    parent = multiprocessing.parent_process()
    if hasattr(os, "pidfd_open"):
        try:
            # Not multiprocessing's own pipe: other children of the parent may hold it open.
            descriptor = os.pidfd_open(parent_pid)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        except ProcessLookupError:
            pass
    elif parent is not None:
        wait([parent.sentinel])
    threading.Event().wait(_ORPHAN_GRACE_S)
    os._exit(1)
