"""Aborts collective operations on a device that would wait forever for a lost rank."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from rollcast.services.process.periodic import PeriodicThread

logger = logging.getLogger(__name__)

# The interval between checks of the running operation.
_LOOK_S: Final = 0.25
# The time after which an operation may be waiting for a rank.
_LONG_S: Final = 2.0


class DeviceOperation(Protocol):
    """A started operation on a device: torch.distributed's `Work`."""

    def is_completed(self) -> bool:
        """Returns whether the operation is done or has failed; does not wait."""

    def wait(self) -> bool:
        """Raises RuntimeError if the operation has failed. The host does not wait."""


class Aborted(NamedTuple):
    """An aborted operation.

    Attributes:
        what: The operation's name, for messages.
        waited_s: The seconds that the device waited.
    """

    what: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class _Running:
    operation: DeviceOperation
    what: str
    began: float


class DeviceWatch:
    """Watches the collective operations on a device, in a thread.

    NCCL's operations return to the host at once, and the device waits for the other ranks. So no call raises if a rank
    is gone. The host may then wait for the device forever. If an operation takes too long or fails, or another rank
    ends, all operations are aborted. The host continues until its next operation, which raises.

    Invariant: no operation is aborted earlier than `timeout_s` after its call, unless an operation fails or a rank
    ends.

    Args:
        abort: Ends all operations on the device, so that its stream continues. Their results are undefined.
        has_rank_ended: Returns whether another rank has announced its end.
        device: The device.
        timeout_s: The seconds that an operation may take.
    """

    def __init__(
        self,
        abort: Callable[[], None],
        has_rank_ended: Callable[[], bool],
        *,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self._abort = abort
        self._has_rank_ended = has_rank_ended
        self._device = device
        self._timeout_s = timeout_s
        # The last operation that the host has asked for; the trainer's thread replaces it.
        self._newest: _Running | None = None
        # The operation that was running at the last check. Operations end in order.
        self._watched: _Running | None = None
        # The last operation that is known to have succeeded.
        self._passed: _Running | None = None
        self._aborted: Aborted | None = None
        self._thread = PeriodicThread(self._look, _LOOK_S, name="ranks-device")
        self._thread.start()

    @property
    def aborted(self) -> Aborted | None:
        """The aborted operation; None: no abort."""
        return self._aborted

    def note(self, operation: DeviceOperation, what: str) -> None:
        """Watches an operation that has just started.

        Args:
            operation: The operation.
            what: The operation's name, for messages.
        """
        self._newest = _Running(operation, what, time.monotonic())

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()

    def _look(self) -> None:
        if self._device.type != "cuda":
            self._check()
            return
        # A thread begins on the first device: an event there would make a context of half a gigabyte.
        with torch.cuda.device(self._device):
            self._check()

    def _check(self) -> None:
        if self._watched is None or self._watched.operation.is_completed():
            # If the previous operation has failed, all later ones have, too.
            self._watched = self._newest
        running = self._watched
        if running is None or running is self._passed:
            return
        waited_s = time.monotonic() - running.began
        if running.operation.is_completed():
            try:
                running.operation.wait()
            except RuntimeError as error:
                logger.warning("%s of all ranks has failed; aborting it: %s", running.what, error)
                self._end(running, waited_s)
            else:
                self._passed = running
        elif waited_s > self._timeout_s or (waited_s > _LONG_S and self._has_rank_ended()):
            logger.warning(
                "the device has waited %.1f s for %s of all ranks; the operation is aborted", waited_s, running.what
            )
            self._end(running, waited_s)

    def _end(self, running: _Running, waited_s: float) -> None:
        self._aborted = Aborted(running.what, waited_s)
        self._thread.stop()
        self._abort()
