"""Computes the bytes of a rollout, and refuses work whose rollouts are above the limit."""

import math

from rollcast.services.columns.schema import ColumnSchema, SubstepSchema
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError

# A reward of four bytes; terminated, truncated and valid.
_SCALARS_BYTES = 4 + 3


def rollout_bytes(rollout_shape: RolloutShape, *, step_bytes: int = _SCALARS_BYTES, has_finals: bool = False) -> int:
    """Returns the bytes of the largest rollout, over all substeps.

    Args:
        rollout_shape: The shape of the rollouts.
        step_bytes: Bytes of a step of a trajectory beside its columns.
        has_finals: Count each observation as a final one, too; else final observations are not counted.
    """
    return max(
        _column_bytes(SubstepSchema.of(key, rollout_shape), has_finals=has_finals)
        + math.prod(rollout_shape.step_shape(key)) * step_bytes
        for key in rollout_shape.spaces
    )


def check_rollout_size(rollout_shape: RolloutShape, *, max_rollout_bytes: int, advice: str) -> None:
    """Refuses work whose rollouts can never be delivered, before anything is allocated for it.

    Args:
        rollout_shape: The shape of the rollouts of one actor.
        max_rollout_bytes: The limit.
        advice: What to do about it, for the message.

    Raises:
        LimitExceededError: A rollout would be larger.
    """
    n_bytes = rollout_bytes(rollout_shape)
    if n_bytes > max_rollout_bytes:
        raise LimitExceededError(
            f"a rollout of {rollout_shape.n_rollout_steps} steps of {rollout_shape.n_envs} environments has {n_bytes} "
            f"bytes; expected at most {max_rollout_bytes}; {advice}",
            limit="max_rollout_bytes",
        )


def _column_bytes(columns: SubstepSchema, *, has_finals: bool) -> int:
    observations: list[ColumnSchema] = list(columns.observation.values()) * (2 if has_finals else 1)
    others = (*columns.last_observation.values(), columns.action, columns.log_prob)
    states = () if columns.initial_state is None else (columns.initial_state,)
    previous = columns.previous_observation.values()
    return sum(column.n_bytes for column in (*observations, *others, *states, *previous))
