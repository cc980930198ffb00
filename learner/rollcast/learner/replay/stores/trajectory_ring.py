"""A store of transitions in a ring of rows, oldest removed first, which stores each observation once."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.frame_stacks import BEGINS
from rollcast.learner.replay.columns.layout import STEPS, EntryLayout, Slots
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory, PendingRows, Span, Write, write_rows
from rollcast.learner.replay.columns.samples import ReplaySample, Room
from rollcast.learner.replay.columns.steps import (
    ENTRY,
    StepColumns,
    pack_flags,
)
from rollcast.learner.replay.saving.part_state import PartState
from rollcast.learner.replay.saving.row_guard import RowGuard, select
from rollcast.learner.replay.stores.base import NO_SLOTS, StoreChange
from rollcast.learner.replay.stores.n_step import fold_n_step
from rollcast.learner.replay.stores.row_plan import plan_rows
from rollcast.services.rollouts.rollouts import Rollout

# The ring has one extra row, for ends of episodes, for this many entries.
STEPS_PER_EPISODE_END: Final = 32

# The worst case: every step ends its episode, T is 2, and a trajectory is a step, a reset row, and the last row.
_MAX_ROWS_AN_ENTRY: Final = 3

# Bytes of rows copied at once for a checkpoint because they will be overwritten next; takes 0.2 ms.
_AHEAD_BYTES: Final = 1 << 18

# The largest row count that is read from a checkpoint; keys count rows.
_MAX_ROWS: Final = 1 << 62
# numpy works with 0-dimensional arrays in half the time it takes with Python ints.
_ENTRY: Final = np.array(ENTRY, np.uint8)
_BEGINS: Final = np.array(BEGINS, np.uint8)
_NO_FLAG: Final = np.array(0, np.uint8)  # comparing first: nonzero takes a third of the time on bools
_ONE: Final = np.array(1)


def ring_rows(capacity: int, n_rollout_steps: int, batch_size: int = 1, frame_stack: int = 1) -> int:
    """Returns the number of rows of a ring that holds `capacity` entries.

    The ring has one row for each entry, K rows for each trajectory, and one row for each 32 entries, for episodes that
    end inside a trajectory. It has at least the 2 T + K - 1 rows of a single trajectory, and the rows of a batch. K - 1
    rows are added; see `TrajectoryRing`. For K = 1 and T >= 16, the ring has at most 1.1 rows an entry, unless a batch
    is more than a third of the capacity.

    Args:
        capacity: Number of entries, at least T.
        n_rollout_steps: T.
        batch_size: Entries of a batch, which the ring can hold even with short episodes.
        frame_stack: K, the number of frames that the policy sees at once.
    """
    n_previous = frame_stack - 1
    extra = frame_stack * -(-capacity // n_rollout_steps) + capacity // STEPS_PER_EPISODE_END
    most_for_a_batch = (_MAX_ROWS_AN_ENTRY + n_previous) * (batch_size + 1)
    return max(capacity + extra, 2 * n_rollout_steps + n_previous, most_for_a_batch) + n_previous


class TrajectoryRing:
    """A ring in which the rows s_0, s_1, ..., s_{T-1} of a trajectory and the observation after them are consecutive.

    Invariant: the next observation of the step in row i is the observation in row i + 1 (modulo the number of rows). No
    index is needed. After an episode that ends inside a trajectory, a row holds its final observation. That row is an
    extra row, or the reset row. Such rows are not steps and are never drawn. Rows are removed in the order of writing,
    so each row exists at least as long as the previous row.

    With a frame stack of K, columns hold single frames, and samples hold stacks. A stack consists of the frames of row
    i and of the K - 1 rows before it, back to the first row of its episode; see `rows_of_stacks`. Each trajectory
    begins with K - 1 rows for the frames before it, which are not steps. The last K - 1 removed rows are not
    overwritten yet, so that no entry loses a frame.

    The oldest entries make room when there are `capacity` entries, or no row is left. If episodes are shorter than 32
    steps on average, their final observations take many rows. The ring is then full below its capacity: at 92 % with
    episodes of 8 steps, never below a third. The ring always holds `batch_size` entries.

    Slots are rows; removed rows are not entries. The key of row i in the ring's n-th round is n * n_slots + i. Not
    thread-safe; the buffer's lock guards it.
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
            layout: Layout of the entries.
            capacity: The largest number of entries, at least T.
            batch_size: Number of entries that it can always hold.
            n_step: Number of steps folded into a sampled transition, at least 1.
            discount: gamma, for folding.
            memory: The memory for the columns; None: main memory.
        """
        self._layout = layout
        self.capacity = capacity
        self._n_previous = layout.frame_stack - 1
        self.n_slots = ring_rows(capacity, layout.n_rollout_steps, batch_size, layout.frame_stack)
        self._max_rows = self.n_slots - self._n_previous
        self.row_bytes = layout.step_bytes.total
        self.guard = RowGuard()
        self._n_step = n_step
        self._discount = discount
        self._columns = StepColumns(layout, memory or MainMemory(), self.n_slots)
        self._modulus = np.array(self.n_slots)
        self.size = 0
        # Rows are counted from the first one ever written; modulo n_slots, they are slots.
        self._tail = 0
        self._head = 0

    @property
    def span(self) -> tuple[int, int]:
        """See `StepRows.span`."""
        return self._tail % self.n_slots, self._head - self._tail

    def is_entry(self, slots: Slots) -> NDArray[np.bool_]:
        """See `StepRows.is_entry`."""
        flags = self._columns.flags.take(slots, mode="clip")
        np.bitwise_and(flags, _ENTRY, flags)
        return flags.astype(np.bool_)

    def entries(self) -> Slots:
        """See `StepRows.entries`."""
        slots: Slots = (self._oldest_entries(self._head - self._tail) + self._tail) % self.n_slots
        return slots

    def n_entries(self, rollout: Rollout) -> int:
        """See `EntryStore.n_entries`: one for each transition."""
        return rollout.n_env_steps

    def fits(self, rollout: Rollout) -> bool:
        """See `EntryStore.fits`. A single trajectory always fits."""
        n_steps = rollout.reward.size
        n_rows = 2 * n_steps + rollout.n_envs * self._n_previous
        return rollout.n_envs == 1 or (n_steps <= self.capacity and n_rows <= self._max_rows)

    def insert(self, rollout: Rollout) -> StoreChange:
        """See `EntryStore.insert`."""
        plan = plan_rows(rollout, n_previous=self._n_previous)
        n_rows, n_entries = len(plan.source), rollout.n_env_steps
        removed = self._make_way(n_rows, n_entries)
        columns = self._columns
        first = self._head % self.n_slots
        if self.guard.is_pending(first, n_rows):
            # the rows behind them, too: else every insertion would pay for the copy of a few rows
            n_ahead = min(max(n_rows, _AHEAD_BYTES // self.row_bytes), self.n_slots)
            self.guard.before_overwriting(np.arange(first, first + n_ahead) % self.n_slots, self.read_rows)
        spans = self._spans(first, plan.source)
        sources = self._layout.arrays(rollout, *STEPS)
        ends = (plan.ends + first) % self.n_slots
        writes = [Write(columns.steps, span, sources) for span in spans]
        last = self._layout.arrays(rollout, "last_observation")
        writes.append(Write(columns.observations, ends, last))
        finals = plan.finals
        if len(finals):
            finals = (finals + first) % self.n_slots
            observations = self._layout.arrays(rollout, "final_observation")
            writes.append(Write(columns.observations, finals, observations))
        previous = plan.previous
        if len(previous):
            previous = (previous + first) % self.n_slots
            frames = self._layout.arrays(rollout, "previous_observation")
            flat = [leaf.reshape(-1, *leaf.shape[2:]) for leaf in frames]
            writes.append(Write(columns.observations, previous, flat))
        columns.memory.write(writes)
        bookkeeping = (rollout.reward, pack_flags(rollout, self._layout.frame_stack))
        for span in spans:
            write_rows((columns.reward, columns.flags), span, bookkeeping)
        columns.flags[ends] = 0
        if len(finals):
            columns.flags[finals] = 0
        if len(previous):
            columns.flags[previous] = 0
        inserted = self._rows_of_entries(first, n_rows)
        self._head += n_rows
        self.size += n_entries
        return StoreChange(inserted, removed)

    def remove(self, slots: Slots) -> None:
        """See `EntryStore.remove`. The rows stay until they are the oldest, because other entries need them."""
        self._columns.flags[slots] &= np.uint8(~ENTRY & 0xFF)
        self.size -= len(slots)

    def update_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """Does nothing: the oldest entries are removed first."""

    def find(self, keys: NDArray[np.int64]) -> tuple[Slots, NDArray[np.bool_]]:
        """See `EntryStore.find`."""
        slots = keys % self.n_slots
        return slots, (keys >= self._tail) & (keys < self._head) & self.is_entry(slots)

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`. T is 1."""
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
        oldest = self._oldest_row(self._tail, self._head)
        for span in self._slices(oldest, self._head - oldest):
            has_rows[span] = True
        return has_rows

    def row_keys(self, state: PartState) -> NDArray[np.int64]:
        """See `EntryStore.row_keys`. All rows have keys, not only the rows of entries."""
        keys = np.full(self.n_slots, -1)
        first = self._oldest_row(state.values["tail"], state.values["head"])
        for span in self._slices(first, state.values["head"] - first):
            n = span.stop - span.start
            keys[span] = np.arange(first, first + n)
            first += n
        return keys

    def read_rows(self, slots: Slots) -> PendingRows:
        """See `EntryStore.read_rows`. Flags change, so they are part of the state."""
        return self._columns.read(slots)

    def write_rows(self, slots: Slots, arrays: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_]) -> None:
        """See `EntryStore.write_rows`."""
        self._columns.write(slots[wanted], select(arrays, wanted))

    def state(self) -> PartState:
        """See `EntryStore.state`."""
        oldest = self._oldest_row(self._tail, self._head)
        flags = np.concatenate([self._columns.flags[span] for span in self._slices(oldest, self._head - oldest)])
        return PartState({"flags": flags}, {"tail": self._tail, "head": self._head, "size": self.size})

    def load_state(self, state: PartState) -> None:
        """See `EntryStore.load_state`."""
        head = self._head = state.whole("head", 0, _MAX_ROWS)
        tail = self._tail = state.whole("tail", max(head - self._max_rows, 0), head)
        oldest = self._oldest_row(tail, head)
        flags = state.array("flags", (head - oldest,), np.uint8)
        self.size = state.whole("size", 0, self.capacity)
        if self.size != np.count_nonzero(flags & _ENTRY):
            raise ValueError(
                f"size is {self.size}; expected the {np.count_nonzero(flags & _ENTRY)} entries of the flags"
            )
        self._columns.flags.fill(0)
        first = 0
        for span in self._slices(oldest, head - oldest):
            n = span.stop - span.start
            self._columns.flags[span] = flags[first : first + n]
            first += n

    def _oldest_row(self, tail: int, head: int) -> int:
        """Returns the oldest row that may be part of a stack; the rows of entries are from `tail` to `head`."""
        return tail if tail == head else max(tail - self._n_previous, 0)

    def _slices(self, tail: int, n_rows: int) -> list[slice]:
        """Returns the slots of n rows from a row on: up to the end of the ring, and from its beginning on."""
        first = tail % self.n_slots
        n_left = min(n_rows, self.n_slots - first)
        return [slice(first, first + n_left), slice(0, n_rows - n_left)]

    def clear(self) -> None:
        """Removes every entry; keys are not reused."""
        self._columns.flags.fill(0)
        self._tail = self._head
        self.size = 0

    def _spans(self, first: int, source: NDArray[np.int64]) -> list[Span]:
        """Returns the spans for the rows of a plan: one, or one up to the ring's end and one from its beginning on."""
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
        """Returns the entries among the n oldest rows, counted from the oldest."""
        first = self._tail % self.n_slots
        stop = first + n_rows
        flags = self._columns.flags[first:stop]
        if stop > self.n_slots:
            flags = np.concatenate([flags, self._columns.flags[: stop - self.n_slots]])
        return np.not_equal(np.bitwise_and(flags, _ENTRY), _NO_FLAG).nonzero()[0]

    def _make_way(self, n_rows: int, n_entries: int) -> Slots:
        """Removes the oldest rows until there is room, and returns the slots of the entries among them."""
        n_live = self._head - self._tail
        n_out = max(n_live + n_rows - self._max_rows, 0)
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
        # Rows stay part of stacks for a while.
        self._columns.flags[first : first + n_out] &= _BEGINS
        self._columns.flags[: max(first + n_out - self.n_slots, 0)] &= _BEGINS
        self._tail += n_out
        self.size -= len(slots)
        return slots
