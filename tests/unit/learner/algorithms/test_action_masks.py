"""Action masks in an update: targets, gradients and entropies are those of what is allowed."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from torch import Tensor
from torch.distributions import Categorical

from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import make_batch

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


def shaken(module, seed: int = 0) -> None:
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))


def constant_dqn(online: list[float], target: list[float], **settings: object) -> Dqn:
    """Networks that say the same of every observation."""
    dqn = Dqn(SPACES, PolicySpec(hidden_sizes=()), DqnSettings(discount=0.5, **settings))
    with torch.no_grad():
        for network, outputs in ((dqn._network, online), (dqn._target.module, target)):
            network.layers[0].weight.zero_()
            network.layers[0].bias.copy_(torch.tensor(outputs))
    return dqn


@pytest.mark.slow
def test_dqn_targets_use_best_allowed_action():
    # The best of all to the target, 1, is forbidden in rows 2 and 3; the last row forbids everything and so nothing.
    dqn = constant_dqn([1.0, 5.0, 3.0], [10.0, 40.0, 30.0], double=False, dueling=False)
    dqn.update(masked_batch(reward=torch.zeros(1, B)), progress=0.0)
    value = torch.tensor([1.0, 5.0, 3.0])[ACTION]
    bootstrap = torch.tensor([40.0, 40.0, 10.0, 30.0, 40.0, 40.0])
    torch.testing.assert_close(dqn.priorities, (value - 0.5 * bootstrap).abs())


def test_double_dqn_chooses_among_allowed_actions():
    # The best of all, 1, is forbidden in rows 2 and 3, where 0 and 2 are worth 7 and 9 to the target.
    dqn = constant_dqn([1.0, 5.0, 0.5], [7.0, -100.0, 9.0], double=True, dueling=False)
    dqn.update(masked_batch(reward=torch.zeros(1, B)), progress=0.0)
    value = torch.tensor([1.0, 5.0, 0.5])[ACTION]
    bootstrap = torch.tensor([-100.0, -100.0, 7.0, 7.0, -100.0, -100.0])
    torch.testing.assert_close(dqn.priorities, (value - 0.5 * bootstrap).abs())


def test_dueling_advantages_are_centred_over_allowed_actions():
    # V = 2 and A = [1, 100, 5]; row 3 of the next observations allows 0 and 2: A - mean = [-2, -, 2].
    dqn = constant_dqn([0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 100.0, 5.0], double=False, dueling=True)
    dqn.update(masked_batch(reward=torch.zeros(1, B)), progress=0.0)
    best = {0: 2 + 100 - 52.5, 1: 2 + 100 - 106 / 3, 2: 2.0, 3: 4.0, 4: 2 + 100 - 50.5, 5: 2 + 100 - 106 / 3}
    torch.testing.assert_close(dqn.priorities, 0.5 * torch.tensor(list(best.values())))


@pytest.mark.parametrize("dueling", [True, False])
def test_dqn_gradient_equals_autograd(dueling):
    dqn = Dqn(SPACES, SPEC, DqnSettings(dueling=dueling, discount=0.0, max_grad_norm=1e9))
    shaken(dqn.policy)
    batch = masked_batch()
    observation, _ = observations(batch)
    outputs = dqn._network(observation)
    values = []
    for row, allowed in enumerate(allowed_of(MASK)):
        q = outputs[row, 1:] + outputs[row, 0] - outputs[row, 1:][allowed].mean() if dueling else outputs[row]
        values.append(q[ACTION[row]])
    loss = torch.nn.functional.huber_loss(torch.stack(values), batch.reward[0])
    expected = torch.autograd.grad(loss, list(dqn.policy.parameters()))
    dqn.update(batch, progress=0.0)
    torch.testing.assert_close(
        dqn._parameters.packed(dqn._parameters.vector.grad), torch.cat([part.reshape(-1) for part in expected])
    )


def make_sac(**settings: object) -> Sac:
    sac = Sac(SPACES, SPEC, SacSettings(**{"discount": 0.9, "initial_temperature": 0.3, **settings}))
    shaken(sac.policy)
    shaken(sac._critics, 1)
    shaken(sac._targets.module, 2)
    return sac


def distributions(outputs: Tensor, mask: Tensor) -> list[Categorical]:
    return [Categorical(logits=outputs[row][allowed]) for row, allowed in enumerate(allowed_of(mask))]


def test_sac_targets_are_expectations_over_allowed_actions():
    sac, batch = make_sac(), masked_batch()
    observation, following = observations(batch)
    with torch.no_grad():
        values = torch.minimum(*sac._targets.module(following))
        policies = distributions(sac.policy.networks["0"](following), NEXT_MASK)
        soft = torch.stack([
            (pi.probs * values[row][allowed]).sum() + 0.3 * pi.entropy()
            for row, (pi, allowed) in enumerate(zip(policies, allowed_of(NEXT_MASK), strict=True))
        ])  # fmt: skip
        taken = torch.stack([every[torch.arange(B), ACTION] for every in sac._critics(observation)])
    errors = taken - (batch.reward[0] + 0.9 * soft)
    sac.update(batch, progress=0.0)
    torch.testing.assert_close(sac.priorities, errors.abs().mean(dim=0), rtol=1e-4, atol=1e-5)


def test_sac_policy_loss_covers_allowed_actions_only():
    weights = torch.linspace(0.2, 1.0, B)
    sac, batch = make_sac(critic_learning_rate=1e-12, target_entropy_ratio=0.5), masked_batch(weights=weights)
    observation, _ = observations(batch)
    values = torch.minimum(*sac._critics(observation)).detach()
    policies = distributions(sac.policy.networks["0"](observation), MASK)
    losses, entropies = [], []
    for row, (pi, allowed) in enumerate(zip(policies, allowed_of(MASK), strict=True)):
        entropies.append(pi.entropy())
        losses.append(-0.3 * pi.entropy() - (pi.probs * values[row][allowed]).sum())
    expected = torch.autograd.grad((weights * torch.stack(losses)).mean(), list(sac.policy.parameters()))
    metrics = sac.update(batch, progress=0.0)
    gradient = sac._policy_parameters.packed(sac._policy_parameters.vector.grad)
    torch.testing.assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]), rtol=1e-3, atol=1e-5)
    entropy = (weights * torch.stack(entropies).detach()).mean()
    torch.testing.assert_close(metrics["entropy"], entropy, rtol=1e-3, atol=1e-4)
    # Half the entropy of the uniform policy over 3, 2, 2, 1, 2 and 1 actions.
    target = 0.5 * torch.tensor([3.0, 2.0, 2.0, 1.0, 2.0, 1.0]).log()
    torch.testing.assert_close(sac._log_temperature.grad, entropy - (weights * target).mean(), rtol=1e-3, atol=1e-4)


def test_sac_temperature_follows_given_target_entropy():
    sac = make_sac(target_entropy=0.1)
    metrics = sac.update(masked_batch(), progress=0.0)
    torch.testing.assert_close(sac._log_temperature.grad, metrics["entropy"] - 0.1)


def test_impala_entropy_and_gradient_cover_allowed_actions_only():
    impala = Impala(SPACES, SPEC, ImpalaSettings(entropy_cost=0.1, max_grad_norm=1e9, normalize_advantages=False))
    shaken(impala.policy)
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
    algorithm = {
        "impala": lambda: Impala(SPACES, SPEC, ImpalaSettings()),
        "ppo": lambda: Ppo(SPACES, SPEC, PpoSettings(minibatch_steps=2)),
        "appo": lambda: Appo(SPACES, SPEC, AppoSettings(minibatch_steps=2)),
        "dqn": lambda: Dqn(SPACES, SPEC, DqnSettings()),
        "sac": lambda: Sac(SPACES, SPEC, SacSettings()),
    }[kind]()
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
