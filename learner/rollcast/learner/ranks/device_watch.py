"""Ends operations of all ranks on a device that would wait for a rank for ever."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from rollcast.services.process.periodic import PeriodicThread

logger = logging.getLogger(__name__)

# It looks so often at the operation that runs.
_LOOK_S: Final = 0.25
# An operation that takes longer than this may be one that waits for a rank.
_LONG_S: Final = 2.0


class DeviceOperation(Protocol):
    """An operation that a device has been asked for: torch.distributed's `Work`."""

    def is_completed(self) -> bool:
        """Returns whether the device has done it, or it has failed; does not wait."""

    def wait(self) -> bool:
        """Raises RuntimeError if it has failed. The host does not wait."""


class Aborted(NamedTuple):
    """An operation that was aborted.

    Attributes:
        what: Names it, for people.
        waited_s: The seconds that the device had waited.
    """

    what: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class _Running:
    operation: DeviceOperation
    what: str
    began: float


class DeviceWatch:
    """Watches the operations of all ranks on a device, in a thread.

    NCCL's operations return to the host at once, and the device waits for the other ranks: no call raises when one of
    them is gone. The host may wait for the device then, for ever. Once an operation has run too long or has failed, or
    another rank has ended, all of them are aborted. The host continues until its next operation, which raises.

    Invariant: an operation is aborted no earlier than `timeout_s` after its call, unless it has failed, or a rank has
    ended.

    Args:
        abort: Ends all operations on the device, so that its stream continues; their results are meaningless.
        has_rank_ended: Returns whether another rank has said that it ends.
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
        # One that has not ended at the last look, perhaps an earlier one. They end in their order.
        self._watched: _Running | None = None
        # The last one that was seen to have ended as it should.
        self._passed: _Running | None = None
        self._aborted: Aborted | None = None
        self._thread = PeriodicThread(self._look, _LOOK_S, name="ranks-device")
        self._thread.start()

    @property
    def aborted(self) -> Aborted | None:
        """The operation that was aborted; None: there is none."""
        return self._aborted

    def note(self, operation: DeviceOperation, what: str) -> None:
        """Watches an operation that the device has just been asked for.

        Args:
            operation: The operation.
            what: Names it, for people.
        """
        self._newest = _Running(operation, what, time.monotonic())

    def close(self) -> None:
        """Ends the thread."""
        self._thread.close()

    def _look(self) -> None:
        if self._device.type != "cuda":
            self._check()
            return
        # A thread begins on the first device: there, asking for an event makes a context, of half a gigabyte.
        with torch.cuda.device(self._device):
            self._check()

    def _check(self) -> None:
        if self._watched is None or self._watched.operation.is_completed():
            # If the one before has failed, all later ones have, too.
            self._watched = self._newest
        running = self._watched
        if running is None or running is self._passed:
            return
        waited_s = time.monotonic() - running.began
        if running.operation.is_completed():
            try:
                running.operation.wait()
            except RuntimeError as error:
                logger.warning("%s of all ranks has failed: it is aborted: %s", running.what, error)
                self._end(running, waited_s)
            else:
                self._passed = running
        elif waited_s > self._timeout_s or (waited_s > _LONG_S and self._has_rank_ended()):
            logger.warning("the device has waited %.1f s for %s of all ranks: it is aborted", waited_s, running.what)
            self._end(running, waited_s)

    def _end(self, running: _Running, waited_s: float) -> None:
        self._aborted = Aborted(running.what, waited_s)
        self._thread.stop()
        self._abort()
