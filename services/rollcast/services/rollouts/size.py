"""Computes the size of a rollout, and refuses work whose rollouts exceed the limit."""

import math

from rollcast.services.columns.schema import common_schemas, substep_schemas
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import FINAL_AXES
from rollcast.services.errors import LimitExceededError


def rollout_bytes(rollout_shape: RolloutShape, *, step_bytes: int | None = None, has_finals: bool = False) -> int:
    """Returns the size of the largest rollout of all substeps, in bytes.

    Args:
        rollout_shape: The shape of the rollouts.
        step_bytes: The bytes of a trajectory's step besides the columns of its substep; None: the bytes of the common
            columns.
        has_finals: True: also count each observation as a final observation. False: count no final observations.
    """
    return max(
        _column_bytes(key, rollout_shape, has_finals=has_finals)
        + (
            _common_bytes(key, rollout_shape)
            if step_bytes is None
            else math.prod(rollout_shape.step_shape(key)) * step_bytes
        )
        for key in rollout_shape.spaces
    )


def check_rollout_size(rollout_shape: RolloutShape, *, max_rollout_bytes: int, advice: str) -> None:
    """Refuses work whose rollouts would exceed the limit, before memory is allocated.

    Args:
        rollout_shape: The shape of the rollouts of one actor.
        max_rollout_bytes: The limit.
        advice: The advice in the message.

    Raises:
        LimitExceededError: A rollout would exceed the limit.
    """
    n_bytes = rollout_bytes(rollout_shape)
    if n_bytes > max_rollout_bytes:
        raise LimitExceededError(
            f"a rollout of {rollout_shape.n_rollout_steps} steps of {rollout_shape.n_envs} environments has {n_bytes} "
            f"bytes; expected at most {max_rollout_bytes}; {advice}",
            limit="max_rollout_bytes",
        )


def _column_bytes(key: str, rollout_shape: RolloutShape, *, has_finals: bool) -> int:
    schemas = substep_schemas(key, rollout_shape)
    finals = schemas.observation.values() if has_finals else ()
    return sum(schema.n_bytes for schema in (*schemas.flat(), *finals) if schema.axes != FINAL_AXES)


def _common_bytes(key: str, rollout_shape: RolloutShape) -> int:
    schemas = common_schemas(key, rollout_shape).values()
    return sum(schema.n_bytes for schema in schemas if schema.axes != FINAL_AXES)
