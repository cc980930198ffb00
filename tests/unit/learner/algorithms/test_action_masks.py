"""Action masks in an update; `test_off_policy_oracles` has those of DQN and SAC, `test_r2d2` those of R2D2."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from torch.distributions import Categorical

from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import make_batch, with_columns
from tests.every_algorithm import make_algorithm
from tests.learnt import shake

B = 6
SPACES = {
    "0": SubstepSpaces(
        observation=Dict({"action_mask": MultiBinary(3), "seen": Box(-np.inf, np.inf, (3,), np.float32)}),
        action=Discrete(3, start=4),
    )
}
SPEC = PolicySpec(hidden_sizes=(16,), activation="relu")
# Actions 0, 2, 1, 2, 0, 1 are taken and allowed; the last next observation is a final one that allows nothing.
MASK = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 0]], dtype=torch.int8)
NEXT_MASK = torch.tensor([[0, 1, 1], [1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.int8)
ACTION = torch.tensor([0, 2, 1, 2, 0, 1])


def masked_batch() -> Batch:
    batch = make_batch(n_steps=1, n_envs=B, action=ACTION[None] + 4)
    columns = batch.substeps["0"]
    seen = {
        "observation": {"action_mask": MASK[None], "seen": columns.observation[""]},
        "last_observation": {"action_mask": NEXT_MASK, "seen": columns.last_observation[""]},
        "final_observation": {"action_mask": NEXT_MASK[:0], "seen": columns.final_observation[""]},
    }
    return with_columns(batch, **seen)


def test_impala_entropy_and_gradient_cover_allowed_actions_only():
    impala = make_algorithm("impala", SPACES, SPEC, entropy_cost=0.1, max_grad_norm=1e9, normalize_advantages=False)
    shake(impala, "policy")
    # Action 1 is never allowed, and so its row of the output layer never moves.
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(1, B, 3)
    batch = masked_batch()
    observation = {**batch.substeps["0"].observation, "action_mask": mask}
    batch = with_columns(batch, action=torch.tensor([[4, 6, 4, 6, 4, 6]]), observation=observation)
    logits = impala.policy.networks["0"]({path: leaf[0] for path, leaf in observation.items()})[:, [0, 2]]
    expected = Categorical(logits=logits).entropy().mean()
    metrics = impala.update(batch, progress=0.0)
    torch.testing.assert_close(metrics["entropy"], expected.detach())
    before = {name: parameter.clone() for name, parameter in impala.policy.named_parameters()}
    impala.update(batch, progress=0.0)
    for name in ("networks.0.layers.1.weight", "networks.0.layers.1.bias"):
        after = dict(impala.policy.named_parameters())[name]
        assert torch.equal(after[1], before[name][1])
        assert not torch.equal(after[0], before[name][0])


@pytest.mark.parametrize("kind", ["impala", "ppo", "appo", "dqn", "sac"])
def test_invalid_rows_may_have_any_mask(kind):
    algorithm = make_algorithm(kind, SPACES, SPEC, **({"minibatch_steps": 2} if kind in ("ppo", "appo") else {}))
    batch = masked_batch()
    columns = batch.substeps["0"]
    mask = MASK.clone()
    mask[0] = 0  # nothing allowed
    mask[1] = torch.tensor([1, 0, 0])  # something was done that is not allowed
    observation = {**columns.observation, "action_mask": mask[None]}
    last = {**columns.last_observation, "action_mask": torch.zeros(B, 3, dtype=torch.int8)}
    valid = torch.ones(1, B, dtype=torch.bool)
    valid[0, :2] = False
    batch = dataclasses.replace(batch, valid=valid, n_env_steps=B - 2)
    batch = with_columns(batch, observation=observation, last_observation=last)
    for _ in range(3):
        metrics = algorithm.update(batch, progress=0.0)
        assert np.isfinite([float(value) for value in metrics.values()]).all()
        assert all(abs(float(value)) < 1e6 for value in metrics.values())
    assert all(np.isfinite(array).all() for array in algorithm.policy_state().values())
    if algorithm.priorities is not None:
        assert (algorithm.priorities < 1e6).all()
    assert math.isfinite(float(metrics.get("entropy", 0.0)))
