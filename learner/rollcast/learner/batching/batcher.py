"""Copies trajectories from the queue into batches `[T, B, ...]`, in a ring of preallocated slots."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import EllipsisType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.copier import Copier, Fence
from rollcast.learner.devices.staging import ArrayLayout, Staging, send_together
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.columns.columns import Columns, CopyInto
from rollcast.services.columns.schema import ColumnSchema, common_schemas, substep_schemas
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import COMMON_STEPS, FINAL_AXES, LAST_AXES, PREVIOUS_AXES, STEP_AXES
from rollcast.services.rollouts.rollouts import NOT_BY_POLICY, EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue

# Two would do on the CPU: training uses one while the other is filled. The third leaves time for a copy to a GPU.
N_SLOTS: Final = 3


_common_steps: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*COMMON_STEPS)


class _Slot:
    """Memory for one batch: one staging for the columns, and one for the final observations, which vary in number.

    Attributes:
        key: The substep.
        copy: Copies trajectories into the columns.
        columns: The columns, without final observations.
        common: The step columns that a batch has only once, not per substep, by field.
        filler_steps: The columns `[T, B, ...]` whose rows without a step are filled: all but `valid`.
    """

    def __init__(self, rollout_shape: RolloutShape, batch_size: int, copier: Copier) -> None:
        self._copier = copier
        self._staging, self._final_staging = Staging(copier), Staging(copier)
        (self.key,) = rollout_shape.spaces
        schemas = substep_schemas(self.key, rollout_shape, n_trajectories=batch_size)
        common = common_schemas(self.key, rollout_shape, n_trajectories=batch_size)
        kept = Columns[ColumnSchema].of(lambda column: {} if column.axes == FINAL_AXES else column.arrays(schemas))
        layout = [
            (schema.shape, schema.leaf.dtype) for schema in (*kept.flat(), *(common[name] for name in COMMON_STEPS))
        ]
        arrays = self._staging.open(layout)
        self.columns: Columns[NDArray[Any]] = kept.filled(arrays, Columns)
        self.copy = CopyInto(self.columns)
        # The numbers of the columns among the arrays that are sent, final observations last.
        staged, finals = itertools.count(), itertools.count(len(arrays))
        self._numbers: Columns[int] = schemas.map(
            lambda schema: next(finals if schema.axes == FINAL_AXES else staged), Columns
        )
        self.common = dict(zip(COMMON_STEPS, arrays[-len(COMMON_STEPS) :], strict=True))
        self.filler_steps = [array for name, array in self.common.items() if name != "valid"]
        self.filler_steps += self.columns.with_axes(STEP_AXES)
        self.policy_version = np.zeros(batch_size, np.int64)
        self.clear()

    def begin(self) -> None:
        """Waits until the slot's previous batch is copied, so that its columns may be overwritten."""
        self._staging.wait()

    def clear(self) -> None:
        """Drops all content of the slot except its columns."""
        self.final_index: list[NDArray[np.int64]] = []
        self.episodes: list[EpisodeStatistics] = []
        self.events: list[EventValue] = []
        self.n_env_steps = 0
        # The versions of steps of the trajectories that have several, [T, n].
        self.policy_versions: list[tuple[slice, NDArray[np.int64]]] = []
        self.final_observation: dict[str, list[NDArray[Any]]] = {path: [] for path in self.columns.observation}

    def send(self) -> "FinishedBatch":
        """Begins to copy the batch to the device."""
        n_finals = sum(map(len, self.final_index))
        layout: list[ArrayLayout] = [((n_finals, 2), np.int64)]
        pieces: list[list[NDArray[Any]]] = [list(self.final_index)]
        for path, arrays in self.final_observation.items():
            column = self.columns.last_observation[path]
            layout.append(((n_finals, *column.shape[1:]), column.dtype))
            pieces.append(arrays)
        policy_versions, overridden = self._by_step() if self.policy_versions else (None, None)
        if overridden is not None:
            layout.append((overridden.shape, np.bool_))
            pieces.append([overridden])
        for target, arrays in zip(self._final_staging.open(layout), pieces, strict=True):
            if arrays:
                np.concatenate(arrays, out=target)
        (sent, (final_index, *finals)), fence = send_together(self._copier, self._staging, self._final_staging)
        reward, terminated, truncated, valid = sent[-len(COMMON_STEPS) :]
        batch = Batch(
            substeps={self.key: self._numbers.picked([*sent, *finals], BatchColumns)},
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            final_index=final_index,
            policy_version=self.policy_version.copy(),
            n_env_steps=self.n_env_steps,
            episodes=tuple(self.episodes),
            events=tuple(self.events),
            policy_versions=policy_versions,
            overridden=None if overridden is None else finals[-1],
        )
        self.clear()
        return FinishedBatch(batch, fence)

    def _by_step(self) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Returns the version of each step, and the transitions that no policy chose; None if the policy chose all."""
        versions = np.tile(self.policy_version, (len(self.common["valid"]), 1))
        for target, of_steps in self.policy_versions:
            versions[:, target] = of_steps
        overridden = (versions == NOT_BY_POLICY) & self.common["valid"]
        return versions, overridden if overridden.any() else None


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch whose copy to the device has begun."""

    _batch: Batch
    _copied: Fence

    def ready(self) -> Batch:
        """Returns the batch for use on the current stream of the calling thread. Call it once."""
        self._copied.before_use()
        return self._batch


class Batcher:
    """A ring of slots, filled with trajectories one after another. Used by one thread.

    A batch travels to the device in two copies: its columns and its final observations. The batcher waits for these
    copies only before it reuses the slot. On the CPU, a batch's tensors are views of its slot. On any device, the
    tensors stay valid until `n_slots - 1` further batches are finished and the next one has begun.

    Trajectories without any transition are omitted, unless `keeps_idle` is set. The rows before a trajectory's first
    transition are overwritten with that transition. These rows have no weight, but networks then see only valid
    observations. A kept trajectory without a transition is overwritten with a transition of another trajectory, if the
    batch has any.

    Args:
        rollout_shape: The shape of the rollouts, with the spaces of their one substep.
        batch_size: B, in trajectories.
        copier: Copies the batches to the target device.
        n_slots: The number of slots in the ring, at least 2.
        keeps_idle: True: trajectories without any transition keep their places in the batch, with no weight.
    """

    def __init__(
        self,
        rollout_shape: RolloutShape,
        *,
        batch_size: int,
        copier: Copier,
        n_slots: int = N_SLOTS,
        keeps_idle: bool = False,
    ) -> None:
        self._batch_size = batch_size
        self._keeps_idle = keeps_idle
        self._slots = [_Slot(rollout_shape, batch_size, copier) for _ in range(n_slots)]
        self._current = 0
        self._filled = 0

    @property
    def n_missing(self) -> int:
        """The number of trajectories that the current batch lacks."""
        return self._batch_size - self._filled

    def add(self, piece: RolloutSlice) -> int:
        """Copies at most `n_missing` trajectories into the current slot.

        Returns:
            The number of trajectories that were omitted because they have no transition.
        """
        slot = self._slots[self._current]
        if not self._filled:
            slot.begin()
        rollout, n_given = piece.rollout, piece.n_trajectories
        n_trajectories = n_given
        source: slice | NDArray[np.int64] = slice(piece.start, piece.stop)
        # which of the rollout's trajectories have transitions; None if all are taken
        acting: NDArray[np.bool_] | None = None
        if rollout.valid is not None and not self._keeps_idle:
            acts = rollout.valid[:, source].any(axis=0)
            if not acts.all():
                acting = np.zeros(rollout.n_envs, np.bool_)
                acting[source] = acts
                source = acting.nonzero()[0]
                n_trajectories = len(source)
        target = slice(self._filled, self._filled + n_trajectories)
        slot.copy(rollout.substeps[slot.key], target, source)
        for column, values in zip(slot.common.values(), _common_steps(rollout), strict=True):
            if values is not None:
                column[:, target] = values[:, source]
        if rollout.valid is None:
            slot.common["valid"][:, target] = True
            slot.n_env_steps += rollout.n_steps * n_trajectories
        else:
            valid = rollout.valid[:, source]
            slot.n_env_steps += int(np.count_nonzero(valid))
            _fill_before_first(slot.filler_steps, valid, self._filled)
        slot.policy_version[target] = rollout.policy_version
        if rollout.policy_versions is not None:
            slot.policy_versions.append((target, rollout.policy_versions[:, source]))
        slot.episodes += (
            rollout.episodes
            if n_given == rollout.n_envs
            else [episode for episode in rollout.episodes if piece.start <= episode.env_index < piece.stop]
        )
        slot.events += piece.events
        if len(rollout.final_index):
            self._add_final_observations(slot, piece, acting)
        self._filled += n_trajectories
        return n_given - n_trajectories

    def finish(self) -> FinishedBatch:
        """Begins to copy the current slot, which must be full, to the device, and moves to the next slot."""
        assert self._filled == self._batch_size, f"{self._filled} of {self._batch_size} trajectories"
        if self._keeps_idle:
            _fill_idle(self._slots[self._current])
        finished = self._slots[self._current].send()
        self._current = (self._current + 1) % len(self._slots)
        self._filled = 0
        return finished

    def restart(self) -> None:
        """Discards the trajectories in the current slot."""
        self._slots[self._current].clear()
        self._filled = 0

    def _add_final_observations(self, slot: _Slot, piece: RolloutSlice, acting: NDArray[np.bool_] | None) -> None:
        index, valid = piece.rollout.final_index, piece.rollout.valid
        # Nearly all rollouts come whole: `...` then copies nothing.
        wanted: EllipsisType | NDArray[np.bool_] = ...
        if valid is not None or piece.n_trajectories < piece.rollout.n_envs:
            wanted = (index[:, 1] >= piece.start) & (index[:, 1] < piece.stop)
            if valid is not None:
                wanted &= valid[index[:, 0], index[:, 1]]
            if not wanted.any():
                return
        shifted = index[wanted].astype(np.int64)
        if acting is None:
            shifted[:, 1] += self._filled - piece.start
        else:
            shifted[:, 1] = self._filled - 1 + np.cumsum(acting)[shifted[:, 1]]
        slot.final_index.append(shifted)
        finals = piece.rollout.substeps[slot.key].final_observation
        for path, arrays in slot.final_observation.items():
            arrays.append(finals[path][wanted])


def _fill_before_first(columns: Sequence[NDArray[Any]], valid: NDArray[np.bool_], start: int) -> None:
    """Copies the first transition of each trajectory into the rows before it.

    Args:
        columns: `[T, B, ...]`, of a slot.
        valid: Bool `[T, n]`, True for transitions of the slot's trajectories `start:start + n`.
        start: The first of these trajectories.
    """
    late = (~valid[0]).nonzero()[0]
    if not len(late):
        return
    first = valid[:, late].argmax(axis=0)
    t, which = (np.arange(len(valid))[:, None] < first).nonzero()
    b, first = late[which] + start, first[which]
    for column in columns:
        column[t, b] = column[first, b]


def _fill_idle(slot: _Slot) -> None:
    """Copies another trajectory's first transition into trajectories without one, if the batch has any."""
    valid = slot.common["valid"]
    acts = valid.any(axis=0)
    if acts.all() or not acts.any():
        return
    idle, b = ~acts, acts.argmax()
    t = valid[:, b].argmax()
    for column in slot.filler_steps:
        column[:, idle] = column[t, b]
    for column in slot.columns.with_axes(LAST_AXES, PREVIOUS_AXES):
        column[idle] = column[b]
