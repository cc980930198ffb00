"""Makes batches without transitions, for a rank without data."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray
from torch import Tensor

from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_of
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import FINAL_AXES, LAST_AXES, PREVIOUS_AXES, STEP_AXES, Column
from rollcast.services.spaces.spaces import space_leaves


def empty_batch(
    policy: TorchPolicy, *, n_steps: int, batch_size: int, device: str, from_replay: bool = False, burn_in: int = 0
) -> Batch:
    """Returns a batch without transitions: it has no weight in any mean, and its gradient is 0.

    It has the shapes of a batch with data, because all ranks perform the same operations. Its observations and
    actions are valid, and all actions are allowed, so that no result is NaN.

    Args:
        policy: The policy in training, of one substep.
        n_steps: T.
        batch_size: B.
        device: The device for the batch.
        from_replay: True for a batch of transitions from a replay buffer, which has complete frame stacks.
        burn_in: See `Batch`.
    """
    ((key, substep),) = policy.spaces.items()
    spec = policy.spec
    has_mask = action_mask_of(substep) is not None
    shape = (n_steps, batch_size)
    leading = {
        STEP_AXES: shape,
        LAST_AXES: (batch_size,),
        FINAL_AXES: (0,),
        PREVIOUS_AXES: (batch_size, spec.frame_stack - 1),
    }
    rollout_shape = RolloutShape.played_with(spec, policy.spaces, n_steps)
    observations = space_leaves(substep.observation)

    def filled(column: Column) -> dict[str, Tensor]:
        if from_replay and column.axes == PREVIOUS_AXES:
            return {}
        made = {}
        for path, schema in column.leaves(substep, rollout_shape).items():
            stack: tuple[int, ...] = ()
            value: NDArray[Any] = np.zeros(schema.shape, schema.dtype)
            if column.dtype is None:
                value = _possible(observations[path] if column.is_tree else substep.action)
            if column.is_tree and from_replay and spec.frame_stack > 1 and not (has_mask and path == ACTION_MASK):
                stack = (spec.frame_stack,)
            array = np.broadcast_to(value, (*leading[column.axes], *stack, *value.shape))
            made[path] = torch.from_numpy(array.copy()).to(device)
        return made

    nothing = torch.zeros(shape, dtype=torch.bool, device=device)
    columns = BatchColumns.of(filled)
    return Batch(
        substeps={key: columns},
        reward=torch.zeros(shape, device=device),
        terminated=nothing,
        truncated=nothing.clone(),
        valid=nothing.clone(),
        final_index=torch.zeros(0, 2, dtype=torch.int64, device=device),
        policy_version=np.zeros(batch_size, np.int64),
        n_env_steps=0,
        episodes=(),
        burn_in=burn_in,
    )


def _possible(space: Space[object]) -> NDArray[np.generic]:
    """Returns an element of a space; for an action mask, the one that allows all actions."""
    if isinstance(space, Box):
        one = np.clip(np.ones(space.shape), space.low.astype(np.float64), space.high.astype(np.float64))
        return np.asarray(one.astype(space.dtype))
    if isinstance(space, Discrete):
        return np.asarray(space.start, space.dtype)
    if isinstance(space, MultiDiscrete):
        return np.asarray(space.start, space.dtype)
    assert isinstance(space, MultiBinary), f"{space} is not a leaf"
    return np.ones(space.shape, space.dtype)
