"""Rollouts made by hand, for tests that need one and play none."""

import gymnasium
import numpy as np

from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout, SubstepColumns
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

CARTPOLE_LIKE: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=gymnasium.spaces.Box(-10, 10, (4,), np.float32), action=gymnasium.spaces.Discrete(2)
    )
}


def make_rollout(
    *,
    sequence: int = 1,
    n_steps: int = 3,
    n_envs: int = 2,
    actor_id: str = "a",
    incarnation: int = 1,
    policy_version: int = 1,
    final_index: list[tuple[int, int]] | None = None,
    valid: np.ndarray | None = None,
) -> Rollout:
    """A rollout whose every number tells where it stands: 1000 * sequence + 10 * t + b."""
    t, b = np.meshgrid(np.arange(n_steps), np.arange(n_envs), indexing="ij")
    number = (1000 * sequence + 10 * t + b).astype(np.float32)
    index = np.array(final_index or np.zeros((0, 2)), np.int32).reshape(-1, 2)
    return Rollout(
        actor_id=actor_id,
        incarnation=incarnation,
        sequence=sequence,
        policy_version=policy_version,
        substeps={
            FLAT_SUBSTEP: SubstepColumns(
                observation={"": np.repeat(number[..., None], 4, axis=-1)},
                action=(number.astype(np.int64) % 2),
                log_prob=-number / 1000,
                last_observation={"": np.full((n_envs, 4), 1000 * sequence + 500, np.float32)},
                final_observation={"": np.full((len(index), 4), 7.0, np.float32) + index[:, 1:]},
            )
        },
        reward=number,
        terminated=np.zeros((n_steps, n_envs), np.bool_),
        truncated=np.zeros((n_steps, n_envs), np.bool_),
        valid=valid,
        final_index=index,
        episodes=tuple(EpisodeStatistics(env_index=b, episode_return=float(b), n_steps=5) for _, b in index),
        env_seeds=tuple(range(n_envs)),
    )
