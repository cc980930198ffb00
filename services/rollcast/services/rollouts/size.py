"""Computes the bytes of a rollout, and refuses work whose rollouts are above the limit."""

from rollcast.services.errors import LimitExceededError
from rollcast.services.rollouts.column_schema import ColumnSchema, SubstepSchema
from rollcast.services.spaces.spaces import EnvironmentSpaces

# A reward of four bytes; terminated, truncated and valid.
_SCALARS_BYTES = 4 + 3


def rollout_bytes(
    spaces: EnvironmentSpaces,
    n_steps: int,
    n_envs: int,
    *,
    state_size: int = 0,
    frame_stack: int = 1,
    step_bytes: int = _SCALARS_BYTES,
    has_finals: bool = False,
) -> int:
    """Returns the bytes of the largest rollout, from its spaces and what the policy adds to it.

    Args:
        spaces: The spaces by substep key.
        n_steps: T.
        n_envs: Environments; B is that times the agents of the substep.
        state_size: S, the size of the recurrent state of a trajectory; 0: none.
        frame_stack: K, the frames that the policy sees at once.
        step_bytes: Bytes of a step of a trajectory beside its columns.
        has_finals: Count each observation as a final one, too; else final observations are not counted.
    """
    return max(
        _column_bytes(
            SubstepSchema.of(
                key, substep, n_steps, n_envs * substep.n_agents, state_size=state_size, frame_stack=frame_stack
            ),
            has_finals=has_finals,
        )
        + n_steps * n_envs * substep.n_agents * step_bytes
        for key, substep in spaces.items()
    )


def check_rollout_size(
    spaces: EnvironmentSpaces,
    n_steps: int,
    n_envs: int,
    *,
    state_size: int = 0,
    frame_stack: int = 1,
    max_rollout_bytes: int,
    advice: str,
) -> None:
    """Refuses work whose rollouts can never be delivered, before anything is allocated for it.

    Args:
        spaces: The spaces by substep key.
        n_steps: T.
        n_envs: Environments of one actor.
        state_size: S, the size of the recurrent state of a trajectory; 0: none.
        frame_stack: K, the frames that the policy sees at once.
        max_rollout_bytes: The limit.
        advice: What to do about it, for the message.

    Raises:
        LimitExceededError: A rollout would be larger.
    """
    n_bytes = rollout_bytes(spaces, n_steps, n_envs, state_size=state_size, frame_stack=frame_stack)
    if n_bytes > max_rollout_bytes:
        raise LimitExceededError(
            f"a rollout of {n_steps} steps of {n_envs} environments has {n_bytes} bytes; expected at most "
            f"{max_rollout_bytes}; {advice}",
            limit="max_rollout_bytes",
        )


def _column_bytes(columns: SubstepSchema, *, has_finals: bool) -> int:
    observations: list[ColumnSchema] = list(columns.observation.values()) * (2 if has_finals else 1)
    others = (*columns.last_observation.values(), columns.action, columns.log_prob)
    states = () if columns.initial_state is None else (columns.initial_state,)
    previous = columns.previous_observation.values()
    return sum(column.n_bytes for column in (*observations, *others, *states, *previous))
