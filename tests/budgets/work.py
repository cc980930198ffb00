"""Counts work, by the function that asks for it: calls, arrays that are made, bytes that are copied.

Only what rollcast's own functions do counts; what libraries do inside does not, so that their versions do not matter.
"""

import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Generated stubs (`rollcast.v1`) are none of ours.
OURS = ("rollcast.services.", "rollcast.actor.", "rollcast.learner.")
# Python 3.12 has no frames for these.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Work:
    """The work of each role, in counts by kind and site: `counts[role][kind, site]`.

    Attributes:
        counts: The counts.
        role: The role that works now.
        is_counting: False: nothing is counted.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.is_counting = False
        self.counts: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)

    def add(self, kind: str, site: str, n: int = 1) -> None:
        """Counts work of the role that works now."""
        if self.is_counting:
            self.counts[self.role][kind, site] += n

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        """Counts calls: a profile function, for `sys.setprofile`."""
        if event not in ("call", "c_call") or not self.is_counting or not _is_ours(frame):
            return
        if event == "c_call":
            self.add("C calls", site_of(frame))
        elif frame.f_code.co_name not in _COMPREHENSIONS:
            self.add("Python calls", site_of(frame))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts what is done meanwhile: calls in this thread, and in those that have `profile`."""
        # The collector would run finalizers at times of its own.
        gc.disable()
        before = sys.getprofile()
        self.is_counting = True
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.is_counting = False
            gc.enable()


def our_caller(*between: str) -> str | None:
    """Returns the function of ours that asked for something; None if another did.

    Args:
        between: The modules whose functions may have passed the request on, by the beginnings of their names.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_ours(frame):
        if not frame.f_globals.get("__name__", "").startswith(("tests.budgets.", *between)):
            return None
        frame = frame.f_back
    return None if frame is None else site_of(frame)


def site_of(frame: FrameType) -> str:
    """Returns the name of a frame's function, `learner.queueing.queue.RolloutQueue.put`."""
    name = frame.f_code.co_qualname
    for comprehension in _COMPREHENSIONS:
        name = name.removesuffix(f".<locals>.{comprehension}")
    return f"{frame.f_globals['__name__'].removeprefix('rollcast.')}.{name}"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith(OURS)
