"""A thread that injects faults into one victim, each after the victim has recovered from the last."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.chaos.report import AnyFault, Recovery

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=AnyFault)


class Books(Protocol):
    """A source of progress: a learner, or a file."""

    changed: threading.Condition


class Assault:
    """Injects faults into one victim.

    Args:
        faults: The faults, in this order.
        inject: Injects a fault, and ends it if it lasts; an event that is set ends it early.
        count: Counts the victim's signs of life; called under the lock of `books`.
        books: Tells when `count` may have changed.
        n_new: The number of new signs of life after which the victim counts as recovered.
        rng: Draws the pauses between faults.
    """

    def __init__(
        self,
        victim: str,
        faults: Sequence[F],
        *,
        inject: Callable[[F, threading.Event], None],
        count: Callable[[], int],
        books: Books,
        n_new: int,
        timeout_s: float,
        rng: random.Random,
    ) -> None:
        self.victim = victim
        self.recoveries: list[Recovery] = []
        self.hangs: list[str] = []
        self._faults, self._inject, self._count, self._books = faults, inject, count, books
        self._n_new, self._timeout_s, self._rng = n_new, timeout_s, rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chaos-assault-{victim}", daemon=True)

    def start(self) -> None:
        """Starts the thread that injects the faults."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until every fault has been brought and recovered from."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.hangs.append(f"{self.victim}: its faults were not through after {timeout_s:.0f} s")

    def end(self) -> None:
        """Ends the faults."""
        self._stop.set()
        with self._books.changed:
            self._books.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._timeout_s)

    def _run(self) -> None:
        try:
            self._bring_all()
        except Exception as error:
            logger.exception("the assault on %s failed", self.victim)
            self.hangs.append(f"{self.victim}: its faults ended with {error!r}")

    def _bring_all(self) -> None:
        if self._await_new(1) is None:
            self.hangs.append(f"{self.victim}: nothing {self._timeout_s:.0f} s after its start")
            return
        for fault in self._faults:
            if self._stop.wait(self._rng.uniform(0.0, 0.5)):
                return
            self._inject(fault, self._stop)
            seconds = self._await_new(self._n_new)
            if self._stop.is_set():
                return
            logger.info("%s: %s, recovered after %s s", self.victim, fault, seconds)
            self.recoveries.append(Recovery(self.victim, fault, seconds))
            if seconds is None:
                self.hangs.append(f"{self.victim}: {fault}, and nothing for {self._timeout_s:.0f} s")
                return

    def _await_new(self, n_new: int) -> float | None:
        """Waits until so much is new; returns how long that took, in seconds; None: not by the deadline."""
        started = time.monotonic()
        wanted = self._count() + n_new
        with self._books.changed:
            there = self._books.changed.wait_for(
                lambda: self._stop.is_set() or self._count() >= wanted, self._timeout_s
            )
        return time.monotonic() - started if there else None
