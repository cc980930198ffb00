"""DQN and SAC against brute force, row by row, over random ends, masks, weights and clips."""

import copy
import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical

from rollcast.learner.algorithms.critics import CriticEnsemble
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import make_batch
from tests.learnt import first_gradient, joined, learnt, shake

N_ACTIONS, START = 4, 2
SPACES = {
    "0": SubstepSpaces(
        observation=Dict({"action_mask": MultiBinary(N_ACTIONS), "seen": Box(-np.inf, np.inf, (3,), np.float32)}),
        action=Discrete(N_ACTIONS, start=START),
    )
}
UNMASKED = {"0": SubstepSpaces(observation=SPACES["0"].observation["seen"], action=SPACES["0"].action)}
SPEC = PolicySpec(hidden_sizes=(8,))
SEEDS = st.integers(0, 2**31)


def random_batch(rng: np.random.Generator, masked: bool) -> Batch:
    """Transitions of any kind: ended or not, valid or not, of any number of steps, with any mask and weight."""
    n = int(rng.integers(1, 9))
    masks = (rng.random((2, n, N_ACTIONS)) < 0.6).astype(np.int8)
    taken = rng.integers(0, N_ACTIONS, n)
    masks[0, np.arange(n), taken] = 1  # what was taken was allowed; a final observation may allow nothing

    def flags(probability: float) -> torch.Tensor:
        return torch.from_numpy(rng.random((1, n)) < probability)

    batch = make_batch(
        n_steps=1,
        n_envs=n,
        seed=int(rng.integers(2**31)),
        action=torch.from_numpy(taken)[None] + START,
        terminated=flags(0.4),
        truncated=flags(0.2),
        valid=flags(0.8),
    )
    columns = batch.substeps["0"]
    given_mask, next_mask = torch.from_numpy(masks)
    if masked:
        columns = dataclasses.replace(
            columns,
            observation={"action_mask": given_mask[None], "seen": columns.observation[""]},
            last_observation={"action_mask": next_mask, "seen": columns.last_observation[""]},
            final_observation={"action_mask": next_mask[:0], "seen": columns.final_observation[""]},
        )
    return dataclasses.replace(
        batch,
        substeps={"0": columns},
        reward=batch.reward * 3.0,
        weights=torch.from_numpy(rng.random(n).astype(np.float32)) if rng.random() < 0.7 else None,
        discount=torch.from_numpy(0.9 ** rng.integers(1, 5, n)).float() if rng.random() < 0.7 else None,
    )


def rows(batch: Batch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    columns = batch.substeps["0"]
    return {path: leaf[0] for path, leaf in columns.observation.items()}, dict(columns.last_observation)


def allowed(observation: Mapping[str, torch.Tensor], n: int) -> list[list[int]]:
    """The actions of each row; all of them where the mask allows none, or where there is none."""
    masks = observation["action_mask"].tolist() if "action_mask" in observation else [[0]] * n
    return [[a for a, bit in enumerate(row) if bit] or list(range(N_ACTIONS)) for row in masks]


def factors(batch: Batch, b: int) -> tuple[float, float]:
    """Discount of the next value, and weight in the loss."""
    n = batch.reward.shape[1]
    discount = 0.9 if batch.discount is None else float(batch.discount[b])
    weight = 1.0 if batch.weights is None else float(batch.weights[b])
    return discount * (not batch.terminated[0, b]), weight * bool(batch.valid[0, b]) / n


def q_values(outputs: list[float], actions: list[int], dueling: bool) -> list[float]:
    if not dueling:
        return outputs
    value, advantages = outputs[0], outputs[1:]
    return [value + advantage - sum(advantages[a] for a in actions) / len(actions) for advantage in advantages]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=SEEDS,
    double=st.booleans(),
    dueling=st.booleans(),
    huber_delta=st.sampled_from([0.1, 1.0, 50.0]),
    reward_scale=st.sampled_from([1.0, 0.2]),
    masked=st.booleans(),
)
def test_dqn_agrees_with_brute_force(
    seed: int, double: bool, dueling: bool, huber_delta: float, reward_scale: float, masked: bool
):
    rng = np.random.default_rng(seed)
    dqn = Dqn(
        SPACES if masked else UNMASKED,
        SPEC,
        DqnSettings(
            discount=0.9, double=double, dueling=dueling, huber_delta=huber_delta, reward_scale=reward_scale,
            max_grad_norm=1e9,
        ),
    )  # fmt: skip
    shake(dqn, "policy", "target", deviation=0.5, seed=seed)
    network = dqn.policy.networks["0"]
    of_target = copy.deepcopy(network)
    of_target.load_state_dict(learnt(dqn, "target"))
    batch = random_batch(rng, masked)
    n = batch.reward.shape[1]
    observation, following = rows(batch)
    outputs = network(observation)
    with torch.no_grad():
        online, target = network(following).tolist(), of_target(following).tolist()
    loss, errors = torch.zeros(()), []
    for b, (here, there) in enumerate(zip(allowed(observation, n), allowed(following, n), strict=True)):
        discount, weight = factors(batch, b)
        worth = q_values(target[b], there, dueling)
        choosing = q_values(online[b], there, dueling) if double else worth
        y = float(batch.reward[0, b]) * reward_scale + discount * worth[max(there, key=choosing.__getitem__)]
        action = int(batch.substeps["0"].action[0, b]) - START
        q = outputs[b, action]
        if dueling:
            q = outputs[b, 0] + outputs[b, 1 + action] - outputs[b, 1:][here].mean()
        error = (q - y).abs()
        errors.append(float(error.detach()))
        huber = 0.5 * error**2 if error <= huber_delta else huber_delta * (error - 0.5 * huber_delta)
        loss = loss + weight * huber
    expected = joined(torch.autograd.grad(loss, list(dqn.policy.parameters())))
    metrics = dqn.update(batch, progress=0.0)
    torch.testing.assert_close(dqn.priorities, torch.tensor(errors), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first_gradient(dqn), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=SEEDS,
    temperature=st.sampled_from([0.01, 0.3, 2.0]),
    reward_scale=st.sampled_from([1.0, 0.2]),
    masked=st.booleans(),
)
def test_sac_agrees_with_brute_force(seed: int, temperature: float, reward_scale: float, masked: bool):
    rng = np.random.default_rng(seed)
    spaces = SPACES if masked else UNMASKED
    sac = Sac(
        spaces,
        SPEC,
        SacSettings(
            discount=0.9, initial_temperature=temperature, reward_scale=reward_scale, max_grad_norm=1e9,
            target_entropy_ratio=0.5,
            # critics that stay nearly where they are, since the policy asks them after their step
            critic_learning_rate=1e-12,
        ),
    )  # fmt: skip
    shake(sac, "policy", "critics", "targets", deviation=0.5, seed=seed)
    critics, targets = (CriticEnsemble(spaces, SPEC, substep_key="0") for _ in range(2))
    critics.load_state_dict(learnt(sac, "critics"))
    targets.load_state_dict(learnt(sac, "targets"))
    batch = random_batch(rng, masked)
    observation, following = rows(batch)
    with torch.no_grad():
        logits = sac.policy.networks["0"](following).tolist()
        first, second = (critic.tolist() for critic in targets(following))
    values = critics(observation)
    loss, errors = torch.zeros(()), []
    for b, there in enumerate(allowed(following, batch.reward.shape[1])):
        discount, weight = factors(batch, b)
        total = sum(math.exp(logits[b][a] - max(logits[b])) for a in there)
        soft = 0.0
        for a in there:
            p = math.exp(logits[b][a] - max(logits[b])) / total
            soft += p * (min(first[b][a], second[b][a]) - temperature * math.log(p)) if p > 0.0 else 0.0
        y = float(batch.reward[0, b]) * reward_scale + discount * soft
        action = int(batch.substeps["0"].action[0, b]) - START
        both = [critic[b, action] - y for critic in values]
        errors.append(float(sum(error.abs() for error in both).detach()) / 2)
        loss = loss + weight * sum(0.5 * error**2 for error in both)
    expected = joined(torch.autograd.grad(loss, list(critics.parameters())))
    policy_loss, entropy, target_entropy = torch.zeros(()), 0.0, 0.0
    outputs, least = sac.policy.networks["0"](observation), values.detach().min(dim=0).values
    for b, here in enumerate(allowed(observation, batch.reward.shape[1])):
        pi, (_, weight) = Categorical(logits=outputs[b][here]), factors(batch, b)
        policy_loss = policy_loss - weight * (temperature * pi.entropy() + (pi.probs * least[b][here]).sum())
        entropy += weight * float(pi.entropy().detach())
        target_entropy += weight * 0.5 * math.log(len(here))
    expected_of_policy = joined(torch.autograd.grad(policy_loss, list(sac.policy.parameters())))
    metrics = sac.update(batch, progress=0.0)
    torch.testing.assert_close(first_gradient(sac, "policy_optimizer"), expected_of_policy, rtol=1e-3, atol=1e-5)
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-3, abs=1e-4)
    of_temperature = float(first_gradient(sac, "temperature_optimizer"))
    assert of_temperature == pytest.approx(entropy - target_entropy, rel=1e-3, abs=1e-4)
    torch.testing.assert_close(sac.priorities, torch.tensor(errors), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["critic_loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first_gradient(sac, "critic_optimizer"), expected, rtol=1e-4, atol=1e-5)
