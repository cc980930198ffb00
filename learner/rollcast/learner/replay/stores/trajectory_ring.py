"""Transitions in a ring of rows, oldest out first, in which no observation is stored twice."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import EntryLayout, Slots
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory, Span, Write, write_rows
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.columns.steps import (
    ENTRY,
    StepColumns,
    final_sources,
    last_sources,
    pack_flags,
    step_sources,
)
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.learner.replay.saving.row_guard import RowGuard, select
from rollcast.learner.replay.stores.base import NO_SLOTS, StoreChange
from rollcast.learner.replay.stores.n_step import fold_n_step
from rollcast.learner.replay.stores.row_plan import plan_rows
from rollcast.services.rollouts.rollouts import Rollout

# Rows set aside for ends of episodes, one in so many entries.
STEPS_PER_EPISODE_END: Final = 32

# Where every step ends its episode, T is 2, and a trajectory goes on behind a reset row: step, reset row, last row.
_MAX_ROWS_AN_ENTRY: Final = 3

# Rows that are copied at once for a checkpoint because they are next to be overwritten: 0.2 ms.
_AHEAD_BYTES: Final = 1 << 18

# Of no dimension: numpy takes half as long with them as with Python's ints.
_ENTRY: Final = np.array(ENTRY, np.uint8)
# What keys, which count them, have room for.
_MAX_ROWS: Final = 1 << 62
_NO_FLAG: Final = np.array(0, np.uint8)  # and of bools it finds those that are not 0 in a third of the time
_ONE: Final = np.array(1)


def ring_rows(capacity: int, n_rollout_steps: int, batch_size: int = 1) -> int:
    """Rows of a ring that holds `capacity` entries.

    Args:
        capacity: Entries, at least T.
        n_rollout_steps: T.
        batch_size: Entries of a batch, which the ring holds however short episodes are.

    Returns:
        A row an entry, one for each trajectory, and one for each 32 entries, for episodes that end inside; at least
        the 2 T that a single trajectory may need, and what a batch needs. With T >= 16, at most 1.1 rows an entry,
        unless a batch is more than a third of the capacity.
    """
    extra = -(-capacity // n_rollout_steps) + capacity // STEPS_PER_EPISODE_END
    return max(capacity + extra, 2 * n_rollout_steps, _MAX_ROWS_AN_ENTRY * (batch_size + 1))


class TrajectoryRing:
    """The rows s_0, s_1, ..., s_{T-1} of a trajectory follow each other, and then comes the observation after them.

    Invariant: the next observation of the step in row i is the observation in row i + 1 (modulo the number of rows),
    without any index: an episode that ends inside a trajectory is followed by a row for its final observation, or by
    the reset row, whose observation is that one. Such rows are no steps and are never drawn. Rows leave in the order in
    which they came, so a row is there as long as the one before it.

    The oldest entries go when `capacity` entries are there, or when no row is left: where episodes are shorter than 32
    steps on average, so many rows go to their ends that the ring is full somewhat below its capacity (with episodes of
    8 steps at 92 % of it, and never below a third). It holds `batch_size` entries whatever comes.

    Slots are rows; the flags of a row that is not there are 0. The key of row i in the ring's n-th round is
    n * n_slots + i. Not thread-safe; the buffer's lock guards it.
    """

    def __init__(
        self,
        layout: EntryLayout,
        capacity: int,
        *,
        batch_size: int = 1,
        n_step: int = 1,
        discount: float = 1.0,
        memory: ColumnMemory | None = None,
    ) -> None:
        """Allocates `ring_rows` rows of `layout.step_bytes`.

        Args:
            layout: Of the entries.
            capacity: Entries it holds at most, at least T.
            batch_size: Entries it holds at least, once so many have been inserted.
            n_step: Steps that are folded into one when a transition is sampled, at least 1.
            discount: gamma, for that.
            memory: Where the columns are to lie; None: in main memory.
        """
        self._layout = layout
        self.capacity = capacity
        self.n_slots = ring_rows(capacity, layout.n_rollout_steps, batch_size)
        self.row_bytes = layout.step_bytes.total
        self.guard = RowGuard()
        self._n_step = n_step
        self._discount = discount
        self._columns = StepColumns(layout, memory or MainMemory(), self.n_slots)
        self._modulus = np.array(self.n_slots)
        self.size = 0
        # Rows are counted from the first that was ever written; modulo n_slots, they are slots.
        self._tail = 0
        self._head = 0

    @property
    def span(self) -> tuple[int, int]:
        """Slot of the oldest row, and how many rows there are from it on."""
        return self._tail % self.n_slots, self._head - self._tail

    def is_entry(self, slots: Slots) -> NDArray[np.bool_]:
        """Bool `[N]`: which of these slots are entries; none is outside the span."""
        flags = self._columns.flags.take(slots, mode="clip")
        np.bitwise_and(flags, _ENTRY, flags)
        return flags.astype(np.bool_)

    def entries(self) -> Slots:
        """int64 `[size]`: the slots of all entries, the oldest first."""
        slots: Slots = (self._oldest_entries(self._head - self._tail) + self._tail) % self.n_slots
        return slots

    def n_entries(self, rollout: Rollout) -> int:
        """How many entries a rollout makes: its transitions."""
        return rollout.n_env_steps

    def fits(self, rollout: Rollout) -> bool:
        """See `EntryStore.fits`; a single trajectory always does."""
        n_steps = rollout.reward.size
        return rollout.n_envs == 1 or (n_steps <= self.capacity and 2 * n_steps <= self.n_slots)

    def insert(self, rollout: Rollout) -> StoreChange:
        """See `EntryStore.insert`."""
        plan = plan_rows(rollout)
        n_rows, n_entries = len(plan.source), rollout.n_env_steps
        removed = self._make_way(n_rows, n_entries)
        columns = self._columns
        first = self._head % self.n_slots
        if self.guard.is_active:
            # and those that are next, or each insertion would pay for a copy of a few rows
            n_ahead = min(max(n_rows, _AHEAD_BYTES // self.row_bytes), self.n_slots)
            if self.guard.is_pending(first, n_rows):
                self.guard.before_overwriting(np.arange(first, first + n_ahead) % self.n_slots, self.read_rows)
        spans = self._spans(first, plan.source)
        sources = step_sources(rollout, self._layout)
        ends = (plan.ends + first) % self.n_slots
        writes = [Write(columns.steps, span, sources) for span in spans]
        writes.append(Write(columns.observations, ends, last_sources(rollout, self._layout)))
        finals = plan.finals
        if len(finals):
            finals = (finals + first) % self.n_slots
            writes.append(Write(columns.observations, finals, final_sources(rollout, self._layout)))
        columns.memory.write(writes)
        bookkeeping = (rollout.reward, pack_flags(rollout))
        for span in spans:
            write_rows((columns.reward, columns.flags), span, bookkeeping)
        columns.flags[ends] = 0
        if len(finals):
            columns.flags[finals] = 0
        inserted = self._rows_of_entries(first, n_rows)
        self._head += n_rows
        self.size += n_entries
        return StoreChange(inserted, removed)

    def remove(self, slots: Slots) -> None:
        """See `EntryStore.remove`. The rows stay, as next observations of others, until it is their turn."""
        self._columns.flags[slots] &= np.uint8(~ENTRY & 0xFF)
        self.size -= len(slots)

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Does nothing: the oldest go first."""

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """See `EntryStore.find`."""
        slots = keys % self.n_slots
        return slots, (keys >= self._tail) & (keys < self._head) & self.is_entry(slots)

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`; T is 1."""
        return self._columns.make_room(n_steps=1, batch_size=batch_size, discount=self._discount)

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """See `EntryStore.gather`."""
        sample, columns = room.sample, self._columns
        folded = None
        if self._n_step > 1:
            folded = fold_n_step(
                slots, n_step=self._n_step, discount=self._discount, reward=columns.reward, flags=columns.flags
            )
        columns.gather(np.add(slots if folded is None else folded.last, _ONE), slots, room)
        if folded is not None:
            room.reward[:] = folded.reward
            sample.n_steps[:] = folded.n_steps
            np.power(self._discount, folded.n_steps, out=sample.discount, casting="same_kind")
            columns.gather_flags(folded.last, room)
        first = self._tail % self.n_slots
        if first + self._head - self._tail <= self.n_slots:
            np.add(slots, np.array(self._tail - first), sample.keys)
        else:
            np.subtract(slots, np.array(first), sample.keys)
            np.remainder(sample.keys, self._modulus, sample.keys)
            np.add(sample.keys, np.array(self._tail), sample.keys)
        return sample

    def has_rows(self) -> NDArray[np.bool_]:
        """See `EntryStore.has_rows`."""
        has_rows = np.zeros(self.n_slots, np.bool_)
        for span in self._slices(*self.span):
            has_rows[span] = True
        return has_rows

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """See `EntryStore.row_keys`: all rows there are."""
        keys = np.full(self.n_slots, -1)
        first = state.values["tail"]
        for span in self._slices(first, state.values["head"] - first):
            n = span.stop - span.start
            keys[span] = np.arange(first, first + n)
            first += n
        return keys

    def read_rows(self, slots: Slots) -> Mapping[str, NDArray[Any]]:
        """See `EntryStore.read_rows`; their flags change, and are in the state."""
        return self._columns.read(slots)

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """See `EntryStore.write_rows`."""
        self._columns.write(slots[wanted], select(arrays, wanted))

    def state(self) -> PartState:
        """See `EntryStore.state`."""
        flags = np.concatenate([self._columns.flags[span] for span in self._slices(*self.span)])
        return PartState({"flags": flags}, {"tail": self._tail, "head": self._head, "size": self.size})

    def load_state(self, state: PartState) -> None:
        """See `EntryStore.load_state`."""
        head = self._head = state.whole("head", 0, _MAX_ROWS)
        tail = self._tail = state.whole("tail", max(head - self.n_slots, 0), head)
        flags = state.array("flags", (head - tail,), np.uint8)
        self.size = state.whole("size", 0, self.capacity)
        if self.size != np.count_nonzero(flags & _ENTRY):
            raise ValueError(f"size is {self.size}, and the flags have {np.count_nonzero(flags & _ENTRY)} entries")
        self._columns.flags.fill(0)
        first = 0
        for span in self._slices(*self.span):
            n = span.stop - span.start
            self._columns.flags[span] = flags[first : first + n]
            first += n

    def _slices(self, tail: int, n_rows: int) -> list[slice]:
        """The slots of so many rows from a row on: up to the end of the ring, and from its beginning on."""
        first = tail % self.n_slots
        n_left = min(n_rows, self.n_slots - first)
        return [slice(first, first + n_left), slice(0, n_rows - n_left)]

    def clear(self) -> None:
        """Removes every entry; keys go on."""
        self._columns.flags.fill(0)
        self._tail = self._head
        self.size = 0

    def _spans(self, first: int, source: NDArray[np.int64]) -> list[Span]:
        """Where the rows of a plan go: at once, or up to the end of the ring and from its beginning on."""
        n_left = self.n_slots - first
        if len(source) <= n_left:
            return [Span(first, source)]
        return [Span(first, source[:n_left]), Span(0, source[n_left:])]

    def _rows_of_entries(self, first: int, n_rows: int) -> Slots:
        if first + n_rows <= self.n_slots:
            (found,) = np.not_equal(self._columns.flags[first : first + n_rows], _NO_FLAG).nonzero()
            found += first
            return found
        rows = np.arange(first, first + n_rows) % self.n_slots
        return rows.compress(self._columns.flags.take(rows) != 0)

    def _oldest_entries(self, n_rows: int) -> Slots:
        """Which of the n oldest rows are entries, counted from the oldest."""
        first = self._tail % self.n_slots
        stop = first + n_rows
        flags = self._columns.flags[first:stop]
        if stop > self.n_slots:
            flags = np.concatenate([flags, self._columns.flags[: stop - self.n_slots]])
        return np.not_equal(np.bitwise_and(flags, _ENTRY), _NO_FLAG).nonzero()[0]

    def _make_way(self, n_rows: int, n_entries: int) -> Slots:
        """Removes the oldest rows until there is room; returns the slots of the entries among them."""
        n_live = self._head - self._tail
        n_out = max(n_live + n_rows - self.n_slots, 0)
        excess = max(self.size + n_entries - self.capacity, 0)
        if not n_out and not excess:
            return NO_SLOTS
        n_seen = min(max(n_out, excess + excess // 8 + 8), n_live)
        entries = self._oldest_entries(n_seen)
        while len(entries) < excess and n_seen < n_live:
            n_seen = min(2 * n_seen, n_live)
            entries = self._oldest_entries(n_seen)
        if excess:
            n_out = max(n_out, int(entries[excess - 1]) + 1)
        removed = entries[: entries.searchsorted(n_out)]
        first = self._tail % self.n_slots
        slots: Slots = removed + first
        if first + n_out > self.n_slots:
            slots %= self.n_slots
        self._columns.flags[first : first + n_out] = 0
        self._columns.flags[: max(first + n_out - self.n_slots, 0)] = 0
        self._tail += n_out
        self.size -= len(slots)
        return slots
