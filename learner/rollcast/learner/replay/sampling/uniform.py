"""Uniform samplers: `Uniform` for entries in any slots, `UniformRows` for a ring whose rows are mostly entries."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import DrawsLeft, Sampler
from rollcast.learner.replay.saving.part_state import PartState, generator_state

# Rounds of drawing before all entries are looked up. If a third of the rows are entries, two nearly always suffice.
_MAX_ROUNDS: Final = 16


class Uniform(Sampler):
    """Draws every entry with the same probability, none twice in a batch, at a cost independent of the size.

    The slots are stored densely in a list, at 16 bytes a slot. The last slot takes the place of a removed slot.
    """

    bytes_per_slot = 16

    def __init__(self, n_slots: int, rng: np.random.Generator) -> None:
        """Starts empty.

        Args:
            n_slots: Number of slots.
            rng: A generator for this sampler only.
        """
        self._rng = rng
        self._list = np.zeros(n_slots, np.int64)
        self._position = np.full(n_slots, -1, np.int64)
        self._n = 0

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        end = self._n + len(slots)
        self._list[self._n : end] = slots
        self._position[slots] = np.arange(self._n, end)
        self._n = end

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        left = self._n - len(slots)
        positions = self._position.take(slots)
        self._position[slots] = -1
        last = self._list[left : self._n]
        movers = last[self._position.take(last) >= 0]
        holes = positions[positions < left]
        self._list[holes] = movers
        self._position[movers] = holes
        self._n = left

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """See `Sampler.sample`; in random order."""
        return self._list.take(self._rng.choice(self._n, n, replace=False))

    def clear(self) -> None:
        """See `Sampler.clear`."""
        self._position.fill(-1)
        self._n = 0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState({"list": self._list[: self._n].copy()}, {"generator": generator_state(self._rng)})

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        entries = state.slots("list", len(self._list))
        self.clear()
        self.insert(entries)
        self._rng.bit_generator.state = state.values["generator"]


class StepRows(Protocol):
    """The interface between `UniformRows` and a ring in which most rows are entries."""

    @property
    def size(self) -> int:
        """The number of rows that are entries."""

    @property
    def span(self) -> tuple[int, int]:
        """The slot of the oldest row, and the number of rows from that row on."""

    def is_entry(self, slots: Slots) -> NDArray[np.bool_]:
        """Returns bool `[N]`, True for slots that are entries; False for slots outside the span."""

    def entries(self) -> Slots:
        """Returns int64 `[size]`, the slots of all entries, oldest first, in time linear in the rows."""


class UniformRows(Sampler):
    """Draws every step of a `TrajectoryRing` with the same probability, none twice in a batch. Needs no memory.

    It draws rows and rejects rows that are not entries. At least half of the ring's rows are entries: one in two if
    every step ends an episode. So the cost does not depend on the size. This does not hold with `max_times_sampled`,
    which uses up entries one by one; `Uniform` is used instead.
    """

    def __init__(self, rows: StepRows, n_slots: int, rng: np.random.Generator) -> None:
        """Starts with the entries in the ring.

        Args:
            rows: The ring.
            n_slots: Number of its rows.
            rng: A generator for this sampler only.
        """
        self._rows = rows
        self._n_slots = n_slots
        self._rng = rng

    def insert(self, slots: Slots) -> None:
        """Does nothing: the ring keeps track of entries."""

    def remove(self, slots: Slots) -> None:
        """Does nothing: the ring keeps track of entries."""

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """See `Sampler.sample`; in random order."""
        size = self._rows.size
        if 2 * n > size:
            return self._look_up(n)
        first, n_rows = self._rows.span
        if first + n_rows > self._n_slots and 2 * n_rows > self._n_slots:
            first, n_rows = 0, self._n_slots  # rejecting a few more is cheaper than wrapping the rest
        # Draw enough that one round nearly always suffices: a second round costs more than a few rows too many.
        expected = n * n_rows / size
        n_drawn = int(expected + 4.0 * (expected - n) ** 0.5 + n * n / size) + 4
        found = self._draw(first, n_rows, n_drawn)
        if len(found) >= n and not _may_repeat(found[:n]):
            return found[:n]
        found = _first_of_each(found)
        for _ in range(_MAX_ROUNDS):
            if len(found) >= n:
                return found[:n]
            found = _first_of_each(np.concatenate([found, self._draw(first, n_rows, n_drawn)]))
        return self._look_up(n)

    def _look_up(self, n: int) -> Slots:
        """Draws from a list of all entries, in time linear in the ring's size."""
        slots = self._rows.entries()
        return slots.take(self._rng.choice(self._rows.size, n, replace=False))

    def _draw(self, first: int, n_rows: int, n: int) -> Slots:
        # Takes less than half the time of `Generator.integers`; rounding shifts probabilities by 1e-16 of the rows.
        numbers = self._rng.random(n)
        numbers *= np.array(float(n_rows))  # takes half the time of multiplying by a Python float
        slots: Slots = numbers.astype(np.int64)
        if first:
            slots += first
        if first + n_rows > self._n_slots:
            slots %= self._n_slots
        return slots[self._rows.is_entry(slots)]

    def clear(self) -> None:
        """Does nothing: the ring keeps track of entries."""

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState(values={"generator": generator_state(self._rng)})

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        self._rng.bit_generator.state = state.values["generator"]


def _may_repeat(slots: Slots) -> bool:
    """Returns False if all slots are distinct; True may be wrong. Sorting half the bits is faster."""
    ordered = slots.astype(np.int32)
    ordered.sort()
    return bool(np.count_nonzero(ordered[1:] == ordered[:-1]))


def _first_of_each(slots: Slots) -> Slots:
    """Returns each slot once, in order of first occurrence."""
    order = slots.argsort(kind="stable")
    ordered = slots.take(order)
    return np.delete(slots, order[1:][ordered[1:] == ordered[:-1]])
