"""Checks that the agreed work fits into an actor's memory limit, before the actor allocates memory."""

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import LimitExceededError
from rollcast.services.joining.join import JoinAgreement
from rollcast.services.rollouts.size import check_rollout_size
from rollcast.services.spaces.spaces import EnvironmentSpaces

_FLOAT32_BYTES = 4


def check_agreed_work(spaces: EnvironmentSpaces, agreement: JoinAgreement, *, max_rollout_bytes: int) -> None:
    """Checks that the agreed work needs no more memory than this actor allows.

    Args:
        spaces: The spaces of the actor's environments.
        agreement: The agreement with the learner.
        max_rollout_bytes: The largest size of a rollout, and of a layer in a forward pass, in bytes.

    Raises:
        LimitExceededError: The work needs more memory.
    """
    n_envs = agreement.n_envs
    check_rollout_size(
        RolloutShape.played_with(agreement.policy, spaces, agreement.n_rollout_steps, n_envs),
        max_rollout_bytes=max_rollout_bytes,
        advice="the learner demands this of the actor: lower n_rollout_steps or envs_per_actor there, or raise "
        "--max-rollout-bytes here",
    )
    n_agents = max(substep.n_agents for substep in spaces.values())
    # an LSTM computes four gates of its size
    memory = 4 * agreement.policy.recurrent_size if agreement.policy.state_size else 0
    widest = max((*agreement.policy.hidden_sizes, memory))
    n_bytes = n_envs * n_agents * widest * _FLOAT32_BYTES
    if n_bytes > max_rollout_bytes:
        raise LimitExceededError(
            f"a hidden layer of {widest} for {n_envs} environments takes {n_bytes} bytes in a step; expected at most "
            f"{max_rollout_bytes}; the learner demands this of the actor: lower hidden_sizes, recurrent_size or "
            "envs_per_actor there, or raise --max-rollout-bytes here",
            limit="max_rollout_bytes",
        )
