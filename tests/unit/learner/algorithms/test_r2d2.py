"""R2D2 against brute force: each trajectory is a loop over its rows, across the borders of episodes."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rollcast.learner.algorithms.r2d2 import R2d2, n_step_returns, rescaled, unscaled
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import build_batch, with_columns
from tests.learnt import first_gradient, joined, learnt, shake

N_ACTIONS, START, T, GAMMA = 3, 2, 9, 0.9
SPACES = {
    "0": SubstepSpaces(
        observation=Dict({"action_mask": MultiBinary(N_ACTIONS), "seen": Box(-np.inf, np.inf, (3,), np.float32)}),
        action=Discrete(N_ACTIONS, start=START),
    )
}
PLAIN = {"discount": GAMMA, "learning_rate": 1e-3, "max_grad_norm": 1e9}
Observation = dict[str, Tensor]


def spec_of(kind: str) -> PolicySpec:
    return PolicySpec(hidden_sizes=(6,), recurrence=kind, recurrent_size=4)


def make_r2d2(kind: str = "lstm", *, seed: int = 0, device: str = "cpu", **changes: object) -> R2d2:
    """Values that differ, and a target network that differs from the other."""
    r2d2 = R2d2(SPACES, spec_of(kind), R2d2Settings(**{**PLAIN, **changes}), device=device, seed=seed)
    shake(r2d2, "policy", deviation=0.4, seed=seed)
    return r2d2


def random_batch(rng: np.random.Generator, state_size: int, *, burn_in: int, device: str = "cpu") -> Batch:
    """Sequences of any kind: episodes end in the same step, in the next one, or are dropped; agents begin late."""
    n = int(rng.integers(1, 5))
    valid, terminated, truncated = np.ones((T, n), bool), np.zeros((T, n), bool), np.zeros((T, n), bool)
    final_index = []
    for b in range(n):
        late = int(rng.integers(0, T)) if rng.random() < 0.4 else 0
        valid[:late, b] = False
        resets_in_next_step, t = rng.random() < 0.5, late
        while t < T:
            event = rng.random()
            if event < 0.3:  # an end
                ends = terminated if rng.random() < 0.5 else truncated
                ends[t, b] = True
                if not resets_in_next_step:
                    final_index.append((t, b))
                elif t + 1 < T:
                    t += 1
                    valid[t, b] = False
            elif event < 0.4 and t + 1 < T:  # a dropped step
                t += 1
                valid[t, b] = False
            t += 1
    masks = (rng.random((T + 1, n, N_ACTIONS)) < 0.6).astype(np.int8)
    taken = rng.integers(0, N_ACTIONS, (T, n))
    np.put_along_axis(masks[:T], taken[..., None], 1, axis=2)  # what was taken was allowed

    def seen(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(*shape, 3)).astype(np.float32))

    n_finals = len(final_index)
    columns = BatchColumns(
        observation={"action_mask": torch.from_numpy(masks[:T]), "seen": seen(T, n)},
        action=torch.from_numpy(taken) + START,
        log_prob=torch.full((T, n), torch.nan),
        last_observation={"action_mask": torch.from_numpy(masks[T]), "seen": seen(n)},
        final_observation={
            "action_mask": torch.from_numpy((rng.random((n_finals, N_ACTIONS)) < 0.6).astype(np.int8)),
            "seen": seen(n_finals),
        },
        initial_state=torch.from_numpy(rng.normal(size=(n, state_size)).astype(np.float32)),
    )
    return build_batch(
        columns,
        reward=torch.from_numpy(rng.normal(size=(T, n)).astype(np.float32)) * 3.0,
        device=device,
        terminated=torch.from_numpy(terminated),
        truncated=torch.from_numpy(truncated),
        valid=torch.from_numpy(valid),
        final_index=torch.tensor(final_index, dtype=torch.int64).reshape(-1, 2),
        weights=torch.from_numpy(rng.random(n).astype(np.float32)) if rng.random() < 0.7 else None,
        burn_in=burn_in,
    )


def at(leaves: Observation, *index: int) -> Observation:
    """One observation, as a batch of one."""
    return {path: leaf[index][None] for path, leaf in leaves.items()}


def allowed(observation: Observation) -> list[int]:
    bits = observation["action_mask"][0].tolist()
    return [a for a, bit in enumerate(bits) if bit] or list(range(N_ACTIONS))


def q_values(outputs: Tensor, observation: Observation, dueling: bool) -> Tensor:
    """[n] of outputs [1, P]."""
    if not dueling:
        return outputs[0]
    advantages = outputs[0, 1:]
    return outputs[0, 0] + advantages - advantages[allowed(observation)].mean()


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + 1e-3 * x


def h_inverse(y: float) -> float:
    root = math.sqrt(1.0 + 4e-3 * (abs(y) + 1.0 + 1e-3))
    return math.copysign(((root - 1.0) / 2e-3) ** 2 - 1.0, y)


@dataclasses.dataclass
class Row:
    """The values of the actions in a row, and in the observation that follows it, as a network computes them."""

    values: Tensor
    next_values: Tensor
    next_observation: Observation


def unrolled(network: torch.nn.Module, batch: Batch, b: int, *, dueling: bool) -> dict[int, Row]:
    """The rows of one trajectory from its first transition on, one step of the network after the other."""
    columns, valid = batch.substeps["0"], batch.valid[:, b].tolist()
    ended = (batch.terminated | batch.truncated)[:, b].tolist()
    finals = {tuple(index): i for i, index in enumerate(batch.final_index.tolist())}
    state = columns.initial_state[b : b + 1]
    rows, first = {}, valid.index(True)
    for t in range(first, T):
        if t > first and (not valid[t - 1] or (ended[t - 1] and valid[t])):
            state = torch.zeros_like(state)
        if t == batch.burn_in:
            state = state.detach()
        observation = at(columns.observation, t, b)
        outputs, state = network(observation, state)
        if (t, b) in finals:
            following = at(columns.final_observation, finals[t, b])
        else:
            following = at(columns.last_observation, b) if t == T - 1 else at(columns.observation, t + 1, b)
        next_outputs, _ = network(following, state)
        rows[t] = Row(
            q_values(outputs, observation, dueling), q_values(next_outputs, following, dueling).detach(), following
        )
    return rows


def target_of(
    given: R2d2Settings, batch: Batch, b: int, start: int, online: dict[int, Row], target: dict[int, Row]
) -> float:
    valid = batch.valid[:, b].tolist()
    total, factor = 0.0, 1.0
    for t in range(start, T):
        total += factor * float(batch.reward[t, b]) * given.reward_scale
        if batch.terminated[t, b]:
            break
        factor *= GAMMA
        if t == start + given.n_step - 1 or t == T - 1 or batch.truncated[t, b] or not valid[t + 1]:
            choosing = online if given.double else target
            best = max(allowed(target[t].next_observation), key=choosing[t].next_values.tolist().__getitem__)
            value = float(target[t].next_values[best])
            total += factor * (h_inverse(value) if given.value_rescaling else value)
            break
    return h(total) if given.value_rescaling else total


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["lstm", "gru"]),
    burn_in=st.integers(0, 4),
    n_step=st.sampled_from([1, 2, 5, 20]),
    double=st.booleans(),
    dueling=st.booleans(),
    value_rescaling=st.booleans(),
    huber_delta=st.sampled_from([0.3, 50.0]),
    reward_scale=st.sampled_from([1.0, 0.2]),
    priority_max_share=st.sampled_from([0.9, 0.0, 1.0]),
)
def test_agrees_with_brute_force(seed: int, kind: str, burn_in: int, **given_settings: object):
    r2d2 = make_r2d2(kind, seed=seed % 1000, **given_settings)
    chosen = R2d2Settings(**{**PLAIN, **given_settings})
    network = r2d2.policy.networks["0"]
    of_target = copy.deepcopy(network)
    of_target.load_state_dict(learnt(r2d2, "target"))
    rng = np.random.default_rng(seed)
    batch = random_batch(rng, spec_of(kind).state_size, burn_in=burn_in)
    n = batch.reward.shape[1]
    n_learnt = int(batch.valid[burn_in:].sum())
    loss, priorities = torch.zeros(()), []
    for b in range(n):
        online = unrolled(network, batch, b, dueling=chosen.dueling)
        with torch.no_grad():
            target = unrolled(of_target, batch, b, dueling=chosen.dueling)
        errors = []
        for t, row in online.items():
            if t < burn_in or not batch.valid[t, b]:
                continue
            y = target_of(chosen, batch, b, t, online, target)
            error = (row.values[int(batch.substeps["0"].action[t, b]) - START] - y).abs()
            errors.append(float(error.detach()))
            delta = chosen.huber_delta
            huber = 0.5 * error**2 if error <= delta else delta * (error - 0.5 * delta)
            loss = loss + huber * (1.0 if batch.weights is None else batch.weights[b]) / n_learnt
        share = chosen.priority_max_share
        priorities.append(share * max(errors) + (1.0 - share) * sum(errors) / len(errors) if errors else 0.0)
    parameters = list(r2d2.policy.parameters())
    expected = (
        torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if loss.requires_grad
        else [torch.zeros_like(parameter) for parameter in parameters]
    )
    metrics = r2d2.update(batch, progress=0.0)
    torch.testing.assert_close(r2d2.priorities, torch.tensor(priorities), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first_gradient(r2d2), joined(tuple(expected)), rtol=1e-3, atol=1e-5)


def some_batch(seed: int = 0, **given_fields: object) -> Batch:
    batch = random_batch(np.random.default_rng(seed), 8, burn_in=2)
    return dataclasses.replace(batch, **given_fields)


def test_sequence_without_a_transition_after_the_burn_in_has_priority_0():
    valid = torch.ones_like(some_batch().valid)
    valid[2:, 0] = False
    r2d2 = make_r2d2()
    r2d2.update(some_batch(valid=valid), progress=0.0)
    assert r2d2.priorities[0] == 0.0
    assert (r2d2.priorities[1:] > 0.0).all()
    r2d2.update(some_batch(valid=torch.arange(T)[:, None].expand_as(valid) < 2), progress=0.0)
    assert not r2d2.priorities.any()
    assert all(np.isfinite(array).all() for array in r2d2.policy_state().values())


def test_rejects_policy_without_a_memory():
    message = "--recurrence none with --algorithm r2d2, .*expected lstm or gru; choose one of them, or --algorithm dqn"
    with pytest.raises(ConfigurationError, match=message):
        R2d2(SPACES, PolicySpec(hidden_sizes=(8,)), R2d2Settings())


def test_rejects_batch_without_recurrent_states():
    with pytest.raises(ConfigurationError, match="no recurrent states, with a burn-in of 2 steps; expected the states"):
        make_r2d2().update(with_columns(some_batch(), initial_state=None), progress=0.0)


# sqrt(2) - 1, sqrt(4) - 1, sqrt(100) - 1, and so on, and a thousandth of x
RESCALED = {0.0: 0.0, 1.0: 0.41521356, 3.0: 1.003, 99.0: 9.099, 9999.0: 108.999, -3.0: -1.003, -0.5625: -0.2505625}


@pytest.mark.parametrize(("x", "h"), RESCALED.items())
def test_rescaled_values_have_golden_numbers(x: float, h: float):
    assert float(rescaled(torch.tensor(x))) == pytest.approx(h, rel=1e-6)
    assert float(unscaled(torch.tensor(h))) == pytest.approx(x, rel=1e-5, abs=1e-7)


@given(st.floats(-1e6, 1e6, width=32))
def test_rescaling_has_an_inverse_in_float32(x: float):
    value = torch.tensor(x)
    assert float(unscaled(rescaled(value))) == pytest.approx(x, rel=1e-5, abs=1e-6)


def returns_of(n: int, *, continues: bool, **columns: list[float]) -> list[float]:
    """The n-step returns of one trajectory."""
    given_columns = {name: torch.tensor(column)[:, None] for name, column in columns.items()}
    goes_on = torch.full_like(given_columns["r_t"], continues, dtype=torch.bool)
    return n_step_returns(**given_columns, continues_t=goes_on, n=n)[:, 0].tolist()


def test_values_behind_an_end_change_nothing_even_if_they_are_not_finite():
    columns = {"r_t": [1.0, torch.inf], "discount_t": [0.5, 0.5], "v_tp1": [2.0, torch.nan]}
    assert returns_of(2, continues=False, **columns)[0] == 2.0
