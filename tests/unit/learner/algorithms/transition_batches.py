"""Batches of made-up transitions, for tests of off-policy algorithms."""

import dataclasses

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.learner.batch import Batch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces
from tests.unit.learner.sample_batches import SPACES as DISCRETE_SPACES
from tests.unit.learner.sample_batches import make_batch

B = 6
START_AT_THREE: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(observation=DISCRETE_SPACES[FLAT_SUBSTEP].observation, action=Discrete(2, start=3))
}
BOX_SPACES: EnvironmentSpaces = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=DISCRETE_SPACES[FLAT_SUBSTEP].observation,
        action=Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    )
}


def transition_batch(*, box: bool = False, seed: int = 0, device: str = "cpu", **changes: object) -> Batch:
    """Six transitions, the second of which terminated; two-dimensional Box actions, or Discrete(2)."""
    terminated = torch.zeros(1, B, dtype=torch.bool)
    terminated[0, 1] = True
    action = None
    if box:
        uniform = torch.rand(1, B, 2, generator=torch.Generator().manual_seed(seed))
        action = uniform * torch.tensor([4.0, 10.0]) - torch.tensor([2.0, 0.0])
    batch = make_batch(n_steps=1, n_envs=B, seed=seed, action=action, terminated=terminated, device=device)
    return dataclasses.replace(batch, **changes)
