"""Logs a stalled trainer, with the stacks of all threads, from a separate thread."""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Self

from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.services.history.history import EventSeverity
from rollcast.services.process.periodic import PeriodicThread

logger = logging.getLogger(__name__)

# The seconds after which it logs a stall, and the seconds after which it logs the stacks.
NOTICE_S = 10.0
STACKS_S = 60.0
_LOOK_S = 1.0


class StallWatchdog:
    """A watchdog for a stalled trainer: logs the stall after 10 s, and the stacks of all threads after 60 s.

    A wait with a reason in `WaitMonitor` is logged by that monitor. After 60 s of such a wait, the watchdog logs the
    stacks, too, unless the wait may last. The trainer's thread enters the watchdog. That thread's stack comes last,
    because events keep the end of a long text.

    Args:
        progress: Returns a number that grows while training continues; called from the watchdog's thread.
        waiting: Returns the reason for the trainer's wait, empty if unknown, and its seconds.
        meant_to_last: Returns True if the present wait may last forever: training is paused, or has ended.
        notice_s: The seconds after which it logs a stall.
        stacks_s: The seconds after which it logs the stacks.
        note: Notes a stall for clients that watch the run.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        waiting: Callable[[], tuple[str, float]],
        meant_to_last: Callable[[], bool],
        *,
        notice_s: float = NOTICE_S,
        stacks_s: float = STACKS_S,
        note: NoteEvent = forget_event,
    ) -> None:
        self._note = note
        self._progress = progress
        self._waiting = waiting
        self._meant_to_last = meant_to_last
        self._notice_s, self._stacks_s = notice_s, stacks_s
        self._last, self._since, self._due_s = -1, time.monotonic(), notice_s
        self._trainer = 0
        self._watch = PeriodicThread(self._look, min(_LOOK_S, notice_s / 4), name="stall-watchdog")

    def __enter__(self) -> Self:
        self._trainer = threading.get_ident()
        self._watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._watch.close()

    def _look(self) -> None:
        now = self._progress()
        if now != self._last or self._meant_to_last():
            self._last, self._since, self._due_s = now, time.monotonic(), self._notice_s
            return
        stalled_s = time.monotonic() - self._since
        if stalled_s < self._due_s:
            return
        reason, _ = self._waiting()
        if self._due_s < self._stacks_s:
            self._due_s = self._stacks_s
            self._note(
                EventSeverity.WARNING,
                f"training has made no progress for {stalled_s:.0f} s; it waits for {reason or 'nothing'}",
            )
            if not reason:
                logger.warning(
                    "training has made no progress for %.0f s, and waits for nothing: an update takes long, or stands "
                    "still; after %.0f s the stacks of all threads follow",
                    stalled_s,
                    self._stacks_s,
                )
        else:
            self._due_s = float("inf")
            what = f"waits for {reason}" if reason else "waits for nothing"
            stacks = all_stacks(last=self._trainer)
            logger.warning("training has made no progress for %.0f s, and %s:\n%s", stalled_s, what, stacks)
            self._note(
                EventSeverity.WARNING, f"training has made no progress for {stalled_s:.0f} s, and {what}", detail=stacks
            )


def all_stacks(*, last: int) -> str:
    """Returns the stacks of all threads of this process, by name; the stack of thread `last` comes last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] == last)
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames
    )
