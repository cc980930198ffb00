"""Computes the bytes of a rollout, and refuses work whose rollouts are above the limit."""

from rollcast.services.errors import LimitExceededError
from rollcast.services.rollouts.column_schema import ColumnSchema, SubstepSchema
from rollcast.services.spaces.spaces import EnvironmentSpaces

# A reward of four bytes; terminated, truncated and valid.
_SCALARS_BYTES = 4 + 3


def rollout_bytes(spaces: EnvironmentSpaces, n_steps: int, n_envs: int) -> int:
    """Returns the bytes of the largest rollout, from its spaces alone: final observations are not counted.

    Args:
        spaces: The spaces by substep key.
        n_steps: T.
        n_envs: Environments; B is that times the agents of the substep.
    """
    return max(
        _column_bytes(SubstepSchema.of(key, substep, n_steps, n_envs * substep.n_agents))
        + n_steps * n_envs * substep.n_agents * _SCALARS_BYTES
        for key, substep in spaces.items()
    )


def check_rollout_size(
    spaces: EnvironmentSpaces, n_steps: int, n_envs: int, *, max_rollout_bytes: int, advice: str
) -> None:
    """Refuses work whose rollouts can never be delivered, before anything is allocated for it.

    Args:
        spaces: The spaces by substep key.
        n_steps: T.
        n_envs: Environments of one actor.
        max_rollout_bytes: The limit.
        advice: What to do about it, for the message.

    Raises:
        LimitExceededError: A rollout would be larger.
    """
    n_bytes = rollout_bytes(spaces, n_steps, n_envs)
    if n_bytes > max_rollout_bytes:
        raise LimitExceededError(
            f"a rollout of {n_steps} steps of {n_envs} environments has {n_bytes} bytes; expected at most "
            f"{max_rollout_bytes}; {advice}",
            limit="max_rollout_bytes",
        )


def _column_bytes(columns: SubstepSchema) -> int:
    leaves: list[ColumnSchema] = [*columns.observation.values(), *columns.last_observation.values()]
    return sum(column.n_bytes for column in (*leaves, columns.action, columns.log_prob))
