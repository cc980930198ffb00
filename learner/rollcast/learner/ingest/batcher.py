"""Copies trajectories from the queue into batches `[T, B, ...]`, in a ring of slots that are allocated once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation, space_leaves

# Two would do on the CPU: training uses one while the other is filled. The third leaves time for a copy to a GPU.
N_SLOTS = 3


@dataclass(slots=True)
class _Column:
    """One column of a slot: a tensor and the numpy view through which it is filled."""

    tensor: Tensor
    array: NDArray[np.generic]


@dataclass(slots=True)
class _SubstepSlot:
    observation: dict[str, _Column]
    action: _Column
    log_prob: _Column
    last_observation: dict[str, _Column]
    initial_state: _Column | None
    previous_observation: dict[str, _Column]
    final_observation: dict[str, list[NDArray[np.generic]]] = field(default_factory=dict)


class _Slot:
    """Memory for one batch."""

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        n_steps: int,
        batch_size: int,
        *,
        state_size: int,
        frame_stack: int,
        pinned: bool,
    ) -> None:
        def column(*shape: int, dtype: np.dtype[np.generic] | type[np.generic]) -> _Column:
            tensor = torch.from_numpy(np.zeros(shape, dtype))
            if pinned:
                tensor = tensor.pin_memory()
            return _Column(tensor, tensor.numpy())

        def leaf_columns(*leading: int, leaves: Mapping[str, object]) -> dict[str, _Column]:
            return {path: column(*leading, *leaf.shape, dtype=leaf.dtype) for path, leaf in leaves.items()}  # type: ignore[attr-defined]

        self.substeps = {}
        for key, substep in spaces.items():
            leaves = space_leaves(substep.observation)
            action_shape, action_dtype = substep.action.shape, substep.action.dtype
            assert action_shape is not None
            assert action_dtype is not None
            self.substeps[key] = _SubstepSlot(
                observation=leaf_columns(n_steps, batch_size, leaves=leaves),
                action=column(n_steps, batch_size, *action_shape, dtype=action_dtype),
                log_prob=column(n_steps, batch_size, dtype=np.float32),
                last_observation=leaf_columns(batch_size, leaves=leaves),
                initial_state=column(batch_size, state_size, dtype=np.float32) if state_size else None,
                previous_observation=leaf_columns(batch_size, frame_stack - 1, leaves=leaves)
                if frame_stack > 1
                else {},
            )
        self.reward = column(n_steps, batch_size, dtype=np.float32)
        self.terminated = column(n_steps, batch_size, dtype=np.bool_)
        self.truncated = column(n_steps, batch_size, dtype=np.bool_)
        self.valid = column(n_steps, batch_size, dtype=np.bool_)
        self.policy_version = np.zeros(batch_size, np.int64)
        self.copied: torch.cuda.Event | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets the batch that was in the slot."""
        self.final_index: list[NDArray[np.int64]] = []
        self.episodes: list[EpisodeStatistics] = []
        self.events: list[EventValue] = []
        self.n_env_steps = 0
        for substep in self.substeps.values():
            substep.final_observation = {path: [] for path in substep.observation}


class Batcher:
    """A ring of slots that are filled with trajectories one after the other. Used by one thread.

    On the CPU a batch's tensors are views of its slot; on a GPU they are copies of it, from pinned memory, and nothing
    waits for the copy. Either way they stay valid until `N_SLOTS - 1` further batches have been finished.

    Trajectories without any transition are left out. The rows before a trajectory's first transition may hold anything,
    so they are overwritten with that transition: they have no weight, but networks see only what an environment showed.

    Args:
        spaces: The spaces of the one substep that the rollouts hold.
        n_rollout_steps: T.
        batch_size: B, in trajectories.
        device: The device on which the batches are wanted.
        state_size: S, the size of the recurrent state in the rollouts; 0: the policy is not recurrent.
        frame_stack: K, the frames that the policy sees at once; the rollouts have the K - 1 before them.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        *,
        n_rollout_steps: int,
        batch_size: int,
        device: torch.device,
        state_size: int = 0,
        frame_stack: int = 1,
    ) -> None:
        self._batch_size = batch_size
        self._device = device
        self._copies = device.type != "cpu"
        self._slots = [
            _Slot(
                spaces,
                n_rollout_steps,
                batch_size,
                state_size=state_size,
                frame_stack=frame_stack,
                pinned=device.type == "cuda",
            )
            for _ in range(N_SLOTS)
        ]
        self._current = 0
        self._filled = 0

    @property
    def n_missing(self) -> int:
        """The trajectories that the current batch lacks."""
        return self._batch_size - self._filled

    def add(self, piece: RolloutSlice) -> None:
        """Copies trajectories, at most `n_missing`, into the current slot."""
        slot = self._slots[self._current]
        rollout, n_trajectories = piece.rollout, piece.n_trajectories
        source: slice | NDArray[np.int64] = slice(piece.start, piece.stop)
        # which of the rollout's trajectories have transitions; None if all do
        acting: NDArray[np.bool_] | None = None
        if rollout.valid is not None:
            acts = rollout.valid[:, source].any(axis=0)
            if not acts.all():
                acting = np.zeros(rollout.n_envs, np.bool_)
                acting[source] = acts
                source = acting.nonzero()[0]
                n_trajectories = len(source)
        target = slice(self._filled, self._filled + n_trajectories)
        for key, columns in rollout.substeps.items():
            room = slot.substeps[key]
            room.action.array[:, target] = columns.action[:, source]
            room.log_prob.array[:, target] = columns.log_prob[:, source]
            for path, column in room.observation.items():
                column.array[:, target] = columns.observation[path][:, source]
                room.last_observation[path].array[target] = columns.last_observation[path][source]
            if room.initial_state is not None and columns.initial_state is not None:
                room.initial_state.array[target] = columns.initial_state[source]
            if columns.previous_observation is not None:
                for path, column in room.previous_observation.items():
                    column.array[target] = columns.previous_observation[path][source]
        slot.reward.array[:, target] = rollout.reward[:, source]
        slot.terminated.array[:, target] = rollout.terminated[:, source]
        slot.truncated.array[:, target] = rollout.truncated[:, source]
        if rollout.valid is None:
            slot.valid.array[:, target] = True
            slot.n_env_steps += rollout.n_steps * n_trajectories
        else:
            valid = rollout.valid[:, source]
            slot.valid.array[:, target] = valid
            slot.n_env_steps += int(np.count_nonzero(valid))
            _fill_before_first(slot, valid, self._filled)
        slot.policy_version[target] = rollout.policy_version
        slot.episodes += (
            rollout.episodes
            if piece.n_trajectories == rollout.n_envs
            else [episode for episode in rollout.episodes if piece.start <= episode.env_index < piece.stop]
        )
        slot.events += piece.events
        if len(rollout.final_index):
            self._add_final_observations(slot, piece, acting)
        self._filled += n_trajectories

    def finish(self) -> Batch:
        """Returns the current slot, which must be full, as a batch, and goes on to the next slot."""
        assert self._filled == self._batch_size, f"{self._filled} of {self._batch_size} trajectories"
        slot = self._slots[self._current]
        batch = self._to_batch(slot)
        if self._device.type == "cuda":
            slot.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            slot.copied.record()
        self._current = (self._current + 1) % N_SLOTS
        self._filled = 0
        following = self._slots[self._current]
        if following.copied is not None:
            following.copied.synchronize()
        following.clear()
        return batch

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
            for path, arrays in slot.substeps[key].final_observation.items():
                arrays.append(columns.final_observation[path][wanted])

    def _to_batch(self, slot: _Slot) -> Batch:
        index = np.concatenate(slot.final_index) if slot.final_index else np.zeros((0, 2), np.int64)
        return Batch(
            substeps={key: self._to_columns(substep) for key, substep in slot.substeps.items()},
            reward=self._on_device(slot.reward.tensor),
            terminated=self._on_device(slot.terminated.tensor),
            truncated=self._on_device(slot.truncated.tensor),
            valid=self._on_device(slot.valid.tensor),
            final_index=self._on_device(torch.from_numpy(index)),
            policy_version=slot.policy_version.copy(),
            n_env_steps=slot.n_env_steps,
            episodes=tuple(slot.episodes),
            events=tuple(slot.events),
        )

    def _to_columns(self, substep: _SubstepSlot) -> BatchColumns:
        final_observation: Observation = {
            path: np.concatenate(arrays) if arrays else np.zeros((0, *column.array.shape[1:]), column.array.dtype)
            for (path, arrays), column in zip(
                substep.final_observation.items(), substep.last_observation.values(), strict=True
            )
        }
        return BatchColumns(
            observation={path: self._on_device(column.tensor) for path, column in substep.observation.items()},
            action=self._on_device(substep.action.tensor),
            log_prob=self._on_device(substep.log_prob.tensor),
            last_observation={
                path: self._on_device(column.tensor) for path, column in substep.last_observation.items()
            },
            final_observation={
                path: self._on_device(torch.from_numpy(array)) for path, array in final_observation.items()
            },
            initial_state=None if substep.initial_state is None else self._on_device(substep.initial_state.tensor),
            previous_observation={
                path: self._on_device(column.tensor) for path, column in substep.previous_observation.items()
            }
            or None,
        )

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True) if self._copies else tensor


def _fill_before_first(slot: _Slot, valid: NDArray[np.bool_], start: int) -> None:
    """Copies the first transition of each trajectory into the rows before it.

    Args:
        slot: The slot.
        valid: Which rows are transitions, bool `[T, n]`, of the trajectories `start:start + n` of the slot.
        start: The first of these trajectories.
    """
    late = (~valid[0]).nonzero()[0]
    if not len(late):
        return
    first = valid[:, late].argmax(axis=0)
    t, which = (np.arange(len(valid))[:, None] < first).nonzero()
    b, first = late[which] + start, first[which]
    columns = [slot.reward, slot.terminated, slot.truncated]
    for substep in slot.substeps.values():
        columns += [*substep.observation.values(), substep.action, substep.log_prob]
    for column in columns:
        column.array[t, b] = column.array[first, b]
