"""Measures how long the trainer assembles its batches itself, and how often it finds a finished batch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollcast.learner.writers import metric_names


class AssemblyTimes:
    """The trainer's time for assembling batches since the last call of `take`. Used by the trainer's thread."""

    def __init__(self) -> None:
        self._restart()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Measures the body, which collects a batch. Time in `waiting` does not count."""
        n_waits, waited_s, began = self._n_waits, self._waited_s, time.perf_counter()
        yield
        self._assembling_s += time.perf_counter() - began - (self._waited_s - waited_s)
        self._n_batches += 1
        self._n_ready += self._n_waits == n_waits

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measures the body, which waits for rollouts because the batch is not ready."""
        began = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began
        self._n_waits += 1

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call, by tag; none if no batch was collected."""
        seconds, assembling_s = time.perf_counter() - self._began, self._assembling_s
        n_batches, n_ready = self._n_batches, self._n_ready
        self._restart()
        if not n_batches:
            return {}
        return {
            metric_names.ASSEMBLY_TRAINER_FRACTION.tag: assembling_s / seconds,
            metric_names.ASSEMBLY_READY_FRACTION.tag: n_ready / n_batches,
        }

    def _restart(self) -> None:
        self._began = time.perf_counter()
        self._assembling_s = self._waited_s = 0.0
        self._n_batches = self._n_ready = self._n_waits = 0
