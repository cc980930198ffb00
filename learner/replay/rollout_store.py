"""Whole rollouts: an entry is T steps of one environment."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from learner.replay.column_memory import (
    Blocks,
    ColumnArray,
    ColumnMemory,
    MainMemory,
    Write,
    host_array,
    write_rows,
    write_span,
)
from learner.replay.layout import EntryLayout, StoredBytes
from learner.replay.part_state import PartState
from learner.replay.row_plan import plan_rows
from learner.replay.samplers import Sampler, Slots
from learner.replay.samples import ReplaySample, Room
from learner.replay.slot_store import SlotStore
from learner.replay.step_columns import (
    STEP,
    StepColumns,
    final_sources,
    last_sources,
    pack_flags,
    step_sources,
)
from services.rollouts import Rollout


class RolloutStore(SlotStore):
    """Row `slot * T + t` holds step t of an entry, and row `capacity * T + slot` the observation after its last step.

    Final observations are few, so they lie one by one beside the columns, where those are: they are the only memory
    that is not allocated at the start. See `SlotStore` for keys and threads.

    Sequences of L steps, after `burn_in` steps more, begin anywhere in an entry where they fit.
    """

    def __init__(
        self,
        layout: EntryLayout,
        capacity: int,
        remover: Sampler,
        *,
        sequence_length: int | None = None,
        burn_in: int = 0,
        discount: float = 1.0,
        memory: ColumnMemory | None = None,
    ) -> None:
        """Allocates `capacity` times `rollout_bytes(layout)`.

        Args:
            layout: Of the entries.
            capacity: Entries it holds at most.
            remover: Draws whoever has to go.
            sequence_length: L; None: samples are whole rollouts.
            burn_in: Steps before a sequence; with it, at most T.
            discount: gamma, for `ReplaySample.discount`.
            memory: Where the columns are to lie; None: in main memory.
        """
        super().__init__(capacity, remover)
        self._layout = layout
        self.n_bytes = rollout_bytes(layout).times(capacity).total
        self._burn_in = burn_in
        self._n_sampled_steps = layout.n_rollout_steps if sequence_length is None else burn_in + sequence_length
        self._discount = discount
        self._n_step_rows = capacity * layout.n_rollout_steps
        self._first_last = np.array(self._n_step_rows)  # of no dimension: numpy takes half as long with it
        self._columns = StepColumns(layout, memory or MainMemory(), self._n_step_rows, n_more_observations=capacity)
        self._policy_version = np.zeros(capacity, np.int64)
        # Slot to t of the episodes that ended in it, ascending, and their final observations in the columns' order.
        self._finals: dict[int, tuple[NDArray[np.int64], list[ColumnArray]]] = {}

    def n_entries(self, rollout: Rollout) -> int:
        """How many entries a rollout makes: one for each environment."""
        return rollout.n_envs

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`; T is the rollout's, or that of burn-in and sequence."""
        return self._columns.make_room(
            n_steps=self._n_sampled_steps,
            batch_size=batch_size,
            discount=self._discount,
            burn_in=self._burn_in,
        )

    def gather(self, slots: Slots, room: Room, rng: np.random.Generator) -> ReplaySample:
        """See `EntryStore.gather`."""
        sample, n_rollout_steps, n_steps = room.sample, self._layout.n_rollout_steps, self._n_sampled_steps
        n_starts = n_rollout_steps - n_steps + 1
        starts = rng.integers(n_starts, size=len(slots)) if n_starts > 1 else np.zeros(len(slots), np.int64)
        first = slots * n_rollout_steps + starts
        rows = (first + np.arange(n_steps)[:, None]).reshape(-1)
        at_end = starts + n_steps == n_rollout_steps
        following = np.where(at_end, np.add(slots, self._first_last), first + n_steps)
        self._columns.gather(following, rows, room)
        np.not_equal(room.flags & STEP, 0, out=sample.valid.reshape(-1))
        sample.policy_version[:] = self._policy_version.take(slots)
        sample.keys[:] = self._keys(slots)
        return self._with_finals(sample, slots, starts)

    def clear(self) -> None:
        """Removes every entry; keys go on."""
        super().clear()
        self._finals.clear()

    def remove(self, slots: Slots) -> None:
        """See `EntryStore.remove`."""
        super().remove(slots)
        for slot in slots.tolist():
            self._finals.pop(slot, None)

    def _read(self, n_slots: int) -> PartState:
        first = self._n_step_rows
        arrays = self._columns.read([slice(0, n_slots * self._layout.n_rollout_steps)])
        for i, column in enumerate(self._columns.observations):
            arrays[f"last{i}"] = np.array(host_array(column[first : first + n_slots]))
        arrays["policy_version"] = self._policy_version[:n_slots].copy()
        arrays["flags"] = self._columns.flags[: n_slots * self._layout.n_rollout_steps].copy()
        slots = sorted(self._finals)
        arrays["final_slots"] = np.repeat(np.array(slots, np.int64), [len(self._finals[slot][0]) for slot in slots])
        if slots:
            arrays["final_t"] = np.concatenate([self._finals[slot][0] for slot in slots])
            for i in range(len(self._columns.observations)):
                pieces = [host_array(self._finals[slot][1][i]) for slot in slots]
                arrays[f"final{i}"] = np.concatenate(pieces)
        return PartState(arrays)

    def _restore(self, n_slots: int, state: PartState) -> None:
        first, arrays = self._n_step_rows, state.arrays
        self._columns.write([slice(0, n_slots * self._layout.n_rollout_steps)], arrays)
        for i, column in enumerate(self._columns.observations):
            write_span(column, slice(first, first + n_slots), arrays[f"last{i}"])
        self._policy_version[:n_slots] = arrays["policy_version"]
        self._columns.flags[: n_slots * self._layout.n_rollout_steps] = arrays["flags"]
        self._finals.clear()
        slots, sizes = np.unique(arrays["final_slots"], return_counts=True)
        if not len(slots):
            return
        finals = [arrays[f"final{i}"] for i in range(len(self._columns.observations))]
        kept = self._columns.memory.keep(finals, sizes.tolist())
        pieces = np.split(arrays["final_t"], np.cumsum(sizes)[:-1])
        for slot, t, observations in zip(slots.tolist(), pieces, kept, strict=True):
            self._finals[slot] = (t, observations)

    def _prepare(self, rollout: Rollout) -> None:
        plan_rows(rollout)  # for its check that no final observation is missing

    def _write(self, slots: Slots, rollout: Rollout) -> None:
        columns, layout = self._columns, self._layout
        rows = Blocks(self._n_step_rows, layout.n_rollout_steps, slots)
        columns.memory.write(
            [
                Write(columns.steps, rows, step_sources(rollout, layout)),
                Write(columns.observations, np.add(slots, self._first_last), last_sources(rollout, layout)),
            ]
        )
        write_rows((columns.reward, columns.flags), rows, (rollout.reward, pack_flags(rollout)))
        self._policy_version[slots] = rollout.policy_version
        if len(rollout.final_index):
            self._keep_finals(slots, rollout)

    def _keep_finals(self, slots: Slots, rollout: Rollout) -> None:
        t, b = rollout.final_index.T.astype(np.int64)
        order = np.lexsort((t, b))
        envs, sizes = np.unique(b, return_counts=True)
        finals = [final[order] for final in final_sources(rollout, self._layout)]
        kept = self._columns.memory.keep(finals, sizes.tolist())
        for slot, its_t, arrays in zip(
            slots[envs].tolist(), np.split(t[order], np.cumsum(sizes)[:-1]), kept, strict=True
        ):
            self._finals[slot] = (its_t, arrays)

    def _with_finals(self, sample: ReplaySample, slots: Slots, starts: NDArray[np.int64]) -> ReplaySample:
        """The sample with the final observations that lie inside it."""
        indices: list[NDArray[np.int64]] = []
        values: list[list[ColumnArray]] = [[] for _ in self._columns.observations]
        for b, slot in enumerate(slots.tolist()):
            finals = self._finals.get(slot)
            if finals is None:
                continue
            t = finals[0] - starts[b]
            begin, end = t.searchsorted((0, self._n_sampled_steps)).tolist()
            indices.append(np.stack([t[begin:end], np.full(end - begin, b)], axis=1))
            for found, array in zip(values, finals[1], strict=True):
                found.append(array[begin:end])
        if not indices:
            return sample
        observations = iter([self._columns.memory.join(found) for found in values])
        return dataclasses.replace(
            sample,
            final_index=np.concatenate(indices),
            substeps={
                key: dataclasses.replace(
                    columns, final_observation={path: next(observations) for path in columns.final_observation}
                )
                for key, columns in sample.substeps.items()
            },
        )


def rollout_bytes(layout: EntryLayout) -> StoredBytes:
    """Bytes of one entry of a `RolloutStore` but for final observations: T steps, last observation, policy version."""
    steps = layout.step_bytes.times(layout.n_rollout_steps)
    return StoredBytes(steps.columns + layout.observation_bytes, steps.bookkeeping + 8)
