"""Whole rollouts: an entry is T steps of one environment."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner.replay.layout import EntryLayout
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
    """Row `slot * T + t` holds step t of an entry; beside them are the observations after the last steps.

    Final observations are few, so they lie one by one beside the arrays: they are the only memory that is not
    allocated at the start. See `SlotStore` for keys and threads.

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
    ) -> None:
        """Allocates `capacity` times `rollout_bytes(layout)`.

        Args:
            layout: Of the entries.
            capacity: Entries it holds at most.
            remover: Draws whoever has to go.
            sequence_length: L; None: samples are whole rollouts.
            burn_in: Steps before a sequence; with it, at most T.
            discount: gamma, for `ReplaySample.discount`.
        """
        super().__init__(capacity, remover)
        self._layout = layout
        self.n_bytes = capacity * rollout_bytes(layout)
        self._burn_in = burn_in
        self._n_sampled_steps = layout.n_rollout_steps if sequence_length is None else burn_in + sequence_length
        self._discount = discount
        self._columns = StepColumns(layout, capacity * layout.n_rollout_steps)
        self._last = [np.zeros((capacity, *column.shape[1:]), column.dtype) for column in self._columns.observations]
        self._policy_version = np.zeros(capacity, np.int64)
        # Slot to t of the episodes that ended in it, and their final observations in the order of the columns.
        self._finals: dict[int, tuple[NDArray[np.int64], list[NDArray[Any]]]] = {}

    def n_entries(self, rollout: Rollout) -> int:
        """How many entries a rollout makes: one for each environment."""
        return rollout.n_envs

    def make_room(self, batch_size: int) -> Room:
        """See `EntryStore.make_room`; T is the rollout's, or that of burn-in and sequence."""
        return Room(
            self._layout,
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
        self._columns.gather(rows, room)
        np.not_equal(room.flags & STEP, 0, out=sample.valid.reshape(-1))
        at_end = starts + n_steps == n_rollout_steps
        inside = None if at_end.all() else np.flatnonzero(~at_end)
        for column, last, target in zip(self._columns.observations, self._last, room.next_targets, strict=True):
            last.take(slots, 0, target, "clip")
            if inside is not None:
                target[inside] = column.take(first[inside] + n_steps, 0)
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

    def _prepare(self, rollout: Rollout) -> None:
        plan_rows(rollout)  # for its check that no final observation is missing

    def _write(self, slots: Slots, rollout: Rollout) -> None:
        shape = (self.capacity, self._layout.n_rollout_steps)
        sources = [*step_sources(rollout, self._layout), pack_flags(rollout)]
        for column, source in zip([*self._columns.steps, self._columns.flags], sources, strict=True):
            column.reshape(*shape, *column.shape[1:])[slots] = source.swapaxes(0, 1)
        for last, source in zip(self._last, last_sources(rollout, self._layout), strict=True):
            last[slots] = source
        self._policy_version[slots] = rollout.policy_version
        if not len(rollout.final_index):
            return
        finals = final_sources(rollout, self._layout)
        for b in np.unique(rollout.final_index[:, 1]).tolist():
            mine = np.flatnonzero(rollout.final_index[:, 1] == b)
            t = rollout.final_index[mine, 0].astype(np.int64)
            self._finals[int(slots[b])] = (t, [final[mine] for final in finals])

    def _with_finals(self, sample: ReplaySample, slots: Slots, starts: NDArray[np.int64]) -> ReplaySample:
        """The sample with the final observations that lie inside it."""
        indices: list[NDArray[np.int64]] = []
        values: list[list[NDArray[Any]]] = [[] for _ in self._last]
        for b, slot in enumerate(slots.tolist()):
            finals = self._finals.get(slot)
            if finals is None:
                continue
            t = finals[0] - starts[b]
            inside = (t >= 0) & (t < self._n_sampled_steps)
            indices.append(np.stack([t[inside], np.full(np.count_nonzero(inside), b)], axis=1))
            for found, arrays in zip(values, finals[1], strict=True):
                found.append(arrays[inside])
        if not indices:
            return sample
        observations = iter(np.concatenate(found) for found in values)
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


def rollout_bytes(layout: EntryLayout) -> int:
    """Bytes of one entry of a `RolloutStore` but for final observations: T steps, last observation, policy version."""
    return layout.n_rollout_steps * layout.step_bytes + layout.observation_bytes + 8
