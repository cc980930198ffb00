"""Action masks in an update: targets, gradients and entropies are those of what is allowed."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from torch import Tensor
from torch.distributions import Categorical

from rollcast.learner.algorithms.critics import CriticEnsemble
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import make_batch
from tests.every_algorithm import make_algorithm
from tests.learnt import first_gradient, joined, learnt, shake

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


def masked_batch(**changes: object) -> Batch:
    batch = make_batch(n_steps=1, n_envs=B, action=ACTION[None] + 4)
    columns = batch.substeps["0"]
    seen = {
        "observation": {"action_mask": MASK[None], "seen": columns.observation[""]},
        "last_observation": {"action_mask": NEXT_MASK, "seen": columns.last_observation[""]},
        "final_observation": {"action_mask": NEXT_MASK[:0], "seen": columns.final_observation[""]},
    }
    return dataclasses.replace(batch, substeps={"0": dataclasses.replace(columns, **seen)}, **changes)


def observations(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    columns = batch.substeps["0"]
    return {path: leaf[0] for path, leaf in columns.observation.items()}, dict(columns.last_observation)


def allowed_of(mask: Tensor) -> list[list[int]]:
    """Indices of what is allowed in each row; all of them where nothing is."""
    return [[i for i, bit in enumerate(row) if bit] or list(range(len(row))) for row in mask.tolist()]


def make_sac(**settings: object) -> Sac:
    sac = make_algorithm("sac", SPACES, SPEC, **{"discount": 0.9, "initial_temperature": 0.3, **settings})
    shake(sac, "policy", "critics", "targets")
    return sac


def distributions(outputs: Tensor, mask: Tensor) -> list[Categorical]:
    return [Categorical(logits=outputs[row][allowed]) for row, allowed in enumerate(allowed_of(mask))]


def test_sac_policy_loss_covers_allowed_actions_only():
    weights = torch.linspace(0.2, 1.0, B)
    sac, batch = make_sac(critic_learning_rate=1e-12, target_entropy_ratio=0.5), masked_batch(weights=weights)
    observation, _ = observations(batch)
    critics = CriticEnsemble(SPACES, SPEC, substep_key="0")
    critics.load_state_dict(learnt(sac, "critics"))
    values = torch.minimum(*critics(observation)).detach()
    policies = distributions(sac.policy.networks["0"](observation), MASK)
    losses, entropies = [], []
    for row, (pi, allowed) in enumerate(zip(policies, allowed_of(MASK), strict=True)):
        entropies.append(pi.entropy())
        losses.append(-0.3 * pi.entropy() - (pi.probs * values[row][allowed]).sum())
    expected = joined(torch.autograd.grad((weights * torch.stack(losses)).mean(), list(sac.policy.parameters())))
    metrics = sac.update(batch, progress=0.0)
    torch.testing.assert_close(first_gradient(sac, "policy_optimizer"), expected, rtol=1e-3, atol=1e-5)
    entropy = (weights * torch.stack(entropies).detach()).mean()
    torch.testing.assert_close(metrics["entropy"], entropy, rtol=1e-3, atol=1e-4)
    # Half the entropy of the uniform policy over 3, 2, 2, 1, 2 and 1 actions.
    target = 0.5 * torch.tensor([3.0, 2.0, 2.0, 1.0, 2.0, 1.0]).log()
    error = first_gradient(sac, "temperature_optimizer")
    torch.testing.assert_close(error, entropy - (weights * target).mean(), rtol=1e-3, atol=1e-4)


def test_impala_entropy_and_gradient_cover_allowed_actions_only():
    impala = make_algorithm("impala", SPACES, SPEC, entropy_cost=0.1, max_grad_norm=1e9, normalize_advantages=False)
    shake(impala, "policy")
    # Action 1 is never allowed, and so its row of the output layer never moves.
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(1, B, 3)
    batch = masked_batch()
    columns = batch.substeps["0"]
    columns = dataclasses.replace(
        columns, action=torch.tensor([[4, 6, 4, 6, 4, 6]]), observation={**columns.observation, "action_mask": mask}
    )
    batch = dataclasses.replace(batch, substeps={"0": columns})
    logits = impala.policy.networks["0"](observations(batch)[0])[:, [0, 2]]
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
    batch = dataclasses.replace(
        batch,
        substeps={"0": dataclasses.replace(columns, observation=observation, last_observation=last)},
        valid=valid,
        n_env_steps=B - 2,
    )
    for _ in range(3):
        metrics = algorithm.update(batch, progress=0.0)
        assert np.isfinite([float(value) for value in metrics.values()]).all()
        assert all(abs(float(value)) < 1e6 for value in metrics.values())
    assert all(np.isfinite(array).all() for array in algorithm.policy_state().values())
    if algorithm.priorities is not None:
        assert (algorithm.priorities < 1e6).all()
    assert math.isfinite(float(metrics.get("entropy", 0.0)))
