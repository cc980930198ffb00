"""Batches of made-up trajectories, for tests of algorithms."""

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

SPACES: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(observation=Box(-np.inf, np.inf, (3,), np.float32), action=Discrete(2))
}


def make_batch(
    *,
    n_steps: int = 5,
    n_envs: int = 4,
    seed: int = 0,
    action: torch.Tensor | None = None,
    reward: torch.Tensor | None = None,
    log_prob: torch.Tensor | None = None,
    terminated: torch.Tensor | None = None,
    truncated: torch.Tensor | None = None,
    valid: torch.Tensor | None = None,
    final_index: torch.Tensor | None = None,
    final_observation: torch.Tensor | None = None,
    device: str = "cpu",
) -> Batch:
    """Whatever is not given is random, or does not happen."""
    rng = torch.Generator().manual_seed(seed)
    nothing = torch.zeros(n_steps, n_envs, dtype=torch.bool)
    observation = torch.randn(n_steps, n_envs, 3, generator=rng)
    last_observation = torch.randn(n_envs, 3, generator=rng)
    random_action = torch.randint(0, 2, (n_steps, n_envs), generator=rng)
    random_reward = torch.randn(n_steps, n_envs, generator=rng)
    valid = ~nothing if valid is None else valid
    final_observation = torch.zeros(0, 3) if final_observation is None else final_observation
    log_prob = torch.full((n_steps, n_envs), float(np.log(0.5))) if log_prob is None else log_prob
    columns = BatchColumns(
        observation={"": observation.to(device)},
        action=(random_action if action is None else action).to(device),
        log_prob=log_prob.to(device),
        last_observation={"": last_observation.to(device)},
        final_observation={"": final_observation.to(device)},
    )
    return Batch(
        substeps={FLAT_SUBSTEP: columns},
        reward=(random_reward if reward is None else reward).to(device),
        terminated=(nothing if terminated is None else terminated).to(device),
        truncated=(nothing if truncated is None else truncated).to(device),
        valid=valid.to(device),
        final_index=(torch.zeros(0, 2, dtype=torch.int64) if final_index is None else final_index).to(device),
        policy_version=np.zeros(n_envs, dtype=np.int64),
        n_env_steps=int(valid.sum()),
        episodes=(),
    )
