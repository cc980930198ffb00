"""Copies trajectories from the queue into batches `[T, B, ...]`, in a ring of slots that are allocated once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.copier import Copier, Fence
from rollcast.learner.devices.staging import ArrayLayout, Staging, send_together
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import space_leaves

# Two would do on the CPU: training uses one while the other is filled. The third leaves time for a copy to a GPU.
N_SLOTS: Final = 3

# Arrays, tensors, or their layouts.
A = TypeVar("A")
A2 = TypeVar("A2")


@dataclass(frozen=True, slots=True)
class _SubstepColumns(Generic[A]):
    """The columns of one substep in a slot; see `BatchColumns`."""

    observation: dict[str, A]
    action: A
    log_prob: A
    last_observation: dict[str, A]
    initial_state: A | None
    previous_observation: dict[str, A]

    def map(self, convert: Callable[[A], A2]) -> "_SubstepColumns[A2]":
        """Converts every column, always in the same order."""
        return _SubstepColumns(
            observation=_map_leaves(convert, self.observation),
            action=convert(self.action),
            log_prob=convert(self.log_prob),
            last_observation=_map_leaves(convert, self.last_observation),
            initial_state=None if self.initial_state is None else convert(self.initial_state),
            previous_observation=_map_leaves(convert, self.previous_observation),
        )


@dataclass(frozen=True, slots=True)
class _Columns(Generic[A]):
    """The columns of a slot; see `Batch`."""

    substeps: dict[str, _SubstepColumns[A]]
    reward: A
    terminated: A
    truncated: A
    valid: A

    def map(self, convert: Callable[[A], A2]) -> "_Columns[A2]":
        """Converts every column, always in the same order."""
        return _Columns(
            substeps={key: columns.map(convert) for key, columns in self.substeps.items()},
            reward=convert(self.reward),
            terminated=convert(self.terminated),
            truncated=convert(self.truncated),
            valid=convert(self.valid),
        )

    def arrange(self, arrays: list[A2]) -> "_Columns[A2]":
        """Returns columns like these of other arrays, which are in the order of `flat`."""
        following = iter(arrays)
        return self.map(lambda _: next(following))

    def flat(self) -> list[A]:
        """Lists all columns."""
        listed: list[A] = []
        self.map(listed.append)
        return listed


def _map_leaves(convert: Callable[[A], A2], leaves: Mapping[str, A]) -> dict[str, A2]:
    return {path: convert(leaf) for path, leaf in leaves.items()}


class _Slot:
    """Memory for one batch: a staging for the columns, and one for the final observations, whose number changes."""

    def __init__(self, layout: _Columns[ArrayLayout], copier: Copier) -> None:
        self._copier = copier
        self._staging, self._final_staging = Staging(copier), Staging(copier)
        self.columns: _Columns[NDArray[Any]] = layout.arrange(self._staging.open(layout.flat()))
        self.policy_version = np.zeros(self.columns.reward.shape[1], np.int64)
        self.clear()

    def begin(self) -> None:
        """Waits until the copy of the batch that was in the slot is made: its columns may be filled again."""
        self._staging.wait()

    def clear(self) -> None:
        """Forgets what the slot holds besides its columns."""
        self.final_index: list[NDArray[np.int64]] = []
        self.episodes: list[EpisodeStatistics] = []
        self.events: list[EventValue] = []
        self.n_env_steps = 0
        self.final_observation: dict[str, dict[str, list[NDArray[Any]]]] = {
            key: {path: [] for path in columns.observation} for key, columns in self.columns.substeps.items()
        }

    def send(self) -> "FinishedBatch":
        """Begins to copy the batch to the device."""
        n_finals = sum(map(len, self.final_index))
        layout: list[ArrayLayout] = [((n_finals, 2), np.int64)]
        pieces: list[list[NDArray[Any]]] = [list(self.final_index)]
        for key, leaves in self.final_observation.items():
            for path, arrays in leaves.items():
                column = self.columns.substeps[key].last_observation[path]
                layout.append(((n_finals, *column.shape[1:]), column.dtype))
                pieces.append(arrays)
        for target, arrays in zip(self._final_staging.open(layout), pieces, strict=True):
            if arrays:
                np.concatenate(arrays, out=target)
        (sent, (final_index, *finals)), fence = send_together(self._copier, self._staging, self._final_staging)
        following = iter(finals)
        columns = self.columns.arrange(sent)
        batch = Batch(
            substeps={
                key: BatchColumns(
                    observation=substep.observation,
                    action=substep.action,
                    log_prob=substep.log_prob,
                    last_observation=substep.last_observation,
                    final_observation={path: next(following) for path in self.final_observation[key]},
                    initial_state=substep.initial_state,
                    previous_observation=substep.previous_observation or None,
                )
                for key, substep in columns.substeps.items()
            },
            reward=columns.reward,
            terminated=columns.terminated,
            truncated=columns.truncated,
            valid=columns.valid,
            final_index=final_index,
            policy_version=self.policy_version.copy(),
            n_env_steps=self.n_env_steps,
            episodes=tuple(self.episodes),
            events=tuple(self.events),
        )
        self.clear()
        return FinishedBatch(batch, fence)


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
    """A ring of slots that are filled with trajectories one after the other. Used by one thread.

    A batch travels to the device in two copies, one of its columns and one of its final observations, and nothing waits
    for them before the slot is filled again. On the CPU a batch's tensors are views of its slot. Either way they stay
    valid until `n_slots - 1` further batches have been finished, and the next one is begun.

    Trajectories without any transition are left out, unless they keep their places. The rows before a trajectory's
    first transition may hold anything, so they are overwritten with that transition: they have no weight, but networks
    see only what an environment showed. Trajectories that keep their places without a transition are overwritten with
    one of another trajectory, if there is one in the batch.

    Args:
        rollout_shape: The shape of the rollouts, with the spaces of the one substep that they hold.
        batch_size: B, in trajectories.
        copier: Copies the batches to the device on which they are wanted.
        n_slots: The slots of the ring, at least 2.
        keeps_idle: True: trajectories without any transition have their places in the batch, and no weight.
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
        layout = _layout(rollout_shape, batch_size)
        self._slots = [_Slot(layout, copier) for _ in range(n_slots)]
        self._current = 0
        self._filled = 0

    @property
    def n_missing(self) -> int:
        """The trajectories that the current batch lacks."""
        return self._batch_size - self._filled

    def add(self, piece: RolloutSlice) -> int:
        """Copies trajectories, at most `n_missing`, into the current slot.

        Returns:
            How many were left out, because they have no transition.
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
        for key, columns in rollout.substeps.items():
            room = slot.columns.substeps[key]
            room.action[:, target] = columns.action[:, source]
            room.log_prob[:, target] = columns.log_prob[:, source]
            for path, column in room.observation.items():
                column[:, target] = columns.observation[path][:, source]
                room.last_observation[path][target] = columns.last_observation[path][source]
            if room.initial_state is not None and columns.initial_state is not None:
                room.initial_state[target] = columns.initial_state[source]
            if columns.previous_observation is not None:
                for path, column in room.previous_observation.items():
                    column[target] = columns.previous_observation[path][source]
        slot.columns.reward[:, target] = rollout.reward[:, source]
        slot.columns.terminated[:, target] = rollout.terminated[:, source]
        slot.columns.truncated[:, target] = rollout.truncated[:, source]
        if rollout.valid is None:
            slot.columns.valid[:, target] = True
            slot.n_env_steps += rollout.n_steps * n_trajectories
        else:
            valid = rollout.valid[:, source]
            slot.columns.valid[:, target] = valid
            slot.n_env_steps += int(np.count_nonzero(valid))
            _fill_before_first(slot.columns, valid, self._filled)
        slot.policy_version[target] = rollout.policy_version
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
        """Begins to copy the current slot, which must be full, to the device, and goes on to the next slot."""
        assert self._filled == self._batch_size, f"{self._filled} of {self._batch_size} trajectories"
        if self._keeps_idle:
            _fill_idle(self._slots[self._current].columns)
        finished = self._slots[self._current].send()
        self._current = (self._current + 1) % len(self._slots)
        self._filled = 0
        return finished

    def restart(self) -> None:
        """Forgets the trajectories in the current slot."""
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
        for key, columns in piece.rollout.substeps.items():
            for path, arrays in slot.final_observation[key].items():
                arrays.append(columns.final_observation[path][wanted])


def _layout(rollout_shape: RolloutShape, batch_size: int) -> _Columns[ArrayLayout]:
    """Returns the shapes and dtypes of the columns of a slot."""

    def leaves_of(leaves: Mapping[str, LeafSchema], *leading: int) -> dict[str, ArrayLayout]:
        return {path: ((*leading, *leaf.shape), leaf.dtype) for path, leaf in leaves.items()}

    shape = rollout_shape.n_rollout_steps, batch_size
    state_size, frame_stack = rollout_shape.state_size, rollout_shape.frame_stack
    substeps: dict[str, _SubstepColumns[ArrayLayout]] = {}
    for key, substep in rollout_shape.spaces.items():
        leaves = {path: leaf_schema(leaf) for path, leaf in space_leaves(substep.observation).items()}
        action = leaf_schema(substep.action)
        substeps[key] = _SubstepColumns(
            observation=leaves_of(leaves, *shape),
            action=((*shape, *action.shape), action.dtype),
            log_prob=(shape, np.float32),
            last_observation=leaves_of(leaves, batch_size),
            initial_state=((batch_size, state_size), np.float32) if state_size else None,
            previous_observation=leaves_of(leaves, batch_size, frame_stack - 1) if frame_stack > 1 else {},
        )
    return _Columns(substeps, (shape, np.float32), (shape, np.bool_), (shape, np.bool_), (shape, np.bool_))


def _fill_before_first(columns: _Columns[NDArray[Any]], valid: NDArray[np.bool_], start: int) -> None:
    """Copies the first transition of each trajectory into the rows before it.

    Args:
        columns: The columns of a slot.
        valid: Which rows are transitions, bool `[T, n]`, of the trajectories `start:start + n` of the slot.
        start: The first of these trajectories.
    """
    late = (~valid[0]).nonzero()[0]
    if not len(late):
        return
    first = valid[:, late].argmax(axis=0)
    t, which = (np.arange(len(valid))[:, None] < first).nonzero()
    b, first = late[which] + start, first[which]
    arrays = [columns.reward, columns.terminated, columns.truncated]
    for substep in columns.substeps.values():
        arrays += [*substep.observation.values(), substep.action, substep.log_prob]
    for array in arrays:
        array[t, b] = array[first, b]


def _fill_idle(columns: _Columns[NDArray[Any]]) -> None:
    """Copies the first transition of a trajectory into those that have none; where no trajectory has one, nothing."""
    acts = columns.valid.any(axis=0)
    if acts.all() or not acts.any():
        return
    idle, b = ~acts, acts.argmax()
    t = columns.valid[:, b].argmax()
    for array in (columns.reward, columns.terminated, columns.truncated):
        array[:, idle] = array[t, b]
    for substep in columns.substeps.values():
        for array in (*substep.observation.values(), substep.action, substep.log_prob):
            array[:, idle] = array[t, b]
        states = () if substep.initial_state is None else (substep.initial_state,)
        for array in (*substep.last_observation.values(), *substep.previous_observation.values(), *states):
            array[idle] = array[b]
