"""The numbers that rlax's own tests expect, of the functions that ours have in common with it.

Source: https://github.com/google-deepmind/rlax, `vtrace_test`, `multistep_test`, `value_learning_test`,
`policy_gradients_test` and `clipping_test`. Rows there are sequences; here they are columns.
"""

import math

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rollcast.actor.policies.torch_distributions import log_prob, log_prob_and_entropy
from rollcast.learner.algorithms.dqn import QNetworks
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import impala_loss
from rollcast.learner.algorithms.ppo_loss import ppo_loss
from rollcast.learner.algorithms.r2d2 import n_step_returns
from rollcast.learner.algorithms.vtrace import Gae, VTraceReturns, gae, vtrace
from rollcast.learner.ranks.reduction import ALONE
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces

REWARDS = [[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]]
DISCOUNTS = [[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]]
NEXT_VALUES = [[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]]
LOGITS = [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]]
ADVANTAGES = [0.3, 0.2, 0.1]


def columns(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows).T.contiguous()


def continues(like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool)


def gae_of(reward: Tensor, discount: Tensor, value: Tensor, lambda_: float) -> Gae:
    """GAE over values that have a row more than the rewards."""
    given = {"r_t": reward, "discount_t": discount, "continues_t": continues(reward)}
    return gae(**given, v_t=value[:-1], v_tp1=value[1:], lambda_=lambda_)


def vtrace_of_the_case(*, lambda_: float = 1.0) -> tuple[VTraceReturns, Tensor, Tensor]:
    """V-trace of two sequences; their values; and their importance weights."""
    acted = [[[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]]]
    learns = [[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]]]
    action = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
    log_rho = log_prob(Discrete(2), torch.tensor(learns), action) - log_prob(Discrete(2), torch.tensor(acted), action)
    value = columns([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]])
    returns = vtrace(
        log_rho_t=log_rho.T,
        r_t=columns([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]),
        discount_t=columns([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]),
        continues_t=continues(value),
        v_t=value,
        v_tp1=torch.cat([value[1:], torch.tensor([[8.4, -1.2]])]),
        lambda_=lambda_,
    )
    return returns, value, log_rho.T.exp()


def test_vtrace_errors_and_advantages():
    returns, value, _rho = vtrace_of_the_case()
    expected = columns([[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]])
    torch.testing.assert_close(returns.vs - value, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(returns.pg_advantage, expected, rtol=1e-4, atol=1e-6)


def test_vtrace_targets_are_the_values_moved_by_weighted_advantages():
    returns, value, rho = vtrace_of_the_case(lambda_=0.8)
    torch.testing.assert_close(returns.vs, value + rho.clamp(max=1.0) * returns.advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (0.75, [[1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4], [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99]]),
        (1.0, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
    ],
)
def test_lambda_returns_and_discounted_returns(lambda_: float, expected: list[list[float]]):
    value = torch.cat([torch.zeros(1, 2), columns(NEXT_VALUES)])  # the first one changes no return
    target = gae_of(columns(REWARDS), columns(DISCOUNTS), value, lambda_).target
    torch.testing.assert_close(target, columns(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (3, [[2.8, -3.15, 0.7, 1.7, 3.4], [1.2155, 0.714, 0.2576, 3.192, 3.99]]),
        (5, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
        (7, [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]),
    ],
)
def test_n_step_returns(n: int, expected: list[list[float]]):
    reward = columns(REWARDS)
    returns = n_step_returns(
        r_t=reward, discount_t=columns(DISCOUNTS), continues_t=continues(reward), v_tp1=columns(NEXT_VALUES), n=n
    )
    torch.testing.assert_close(returns, columns(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]]),
    ],
)
def test_generalised_advantages(lambda_: float, expected: list[list[float]]):
    value = columns([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]])
    reward = columns([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]])
    discount = columns([[0.99] * 5, [0.9, 0.9, 0.9, 0.0, 0.9]])
    advantage = gae_of(reward, discount, value, lambda_).advantage
    torch.testing.assert_close(advantage, columns(expected), rtol=0.0, atol=1e-3)


def test_td_lambda_errors():
    value = columns([[1.1, -1.1, 3.1, 2.2], [2.1, -1.1, -2.1, -1.2]])
    reward = columns([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]])
    discount = columns([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]])
    returns = gae_of(reward, discount, value, 0.75)
    expected = columns([[-2.4, 3.2732253, 1.0700002], [-0.01701999, 2.6529999, -2.196]])
    torch.testing.assert_close(returns.advantage, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "shift", "sign", "policy", "entropy"),
    [
        ([-2.0, 2.0, 0.0], 0.0, 1.0, 0.0788835088, -0.288693),
        ([-3.0, 1.0, -1.0], 1.0, -1.0, 0.327200909, -1.15422),
    ],
)
def test_losses_of_the_policy_gradient_and_of_the_entropy(
    weight: list[float], shift: float, sign: float, policy: float, entropy: float
):
    action = torch.tensor([0, 1, 2] if sign > 0.0 else [0, 0, 0])
    log_probability, entropies = log_prob_and_entropy(Discrete(3), torch.tensor(LOGITS) + shift, action)
    loss = impala_loss(
        log_prob=log_probability,
        entropy=entropies,
        value=torch.zeros(3),
        target=torch.zeros(3),
        advantage=sign * torch.tensor(ADVANTAGES),
        weight=torch.tensor(weight) / 3,
        value_cost=0.5,
        entropy_cost=0.01,
    )
    assert loss.policy.item() == pytest.approx(policy, abs=1e-6)
    assert loss.entropy.item() == pytest.approx(entropy, abs=1e-5)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, -0.17117467), (-1.0, 0.19333333)])
def test_clipped_surrogate(sign: float, expected: float):
    action = torch.tensor([0, 1, 2])
    acted = torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -2.0, -1.0]])
    loss = ppo_loss(
        log_prob=log_prob(Discrete(3), torch.tensor(LOGITS), action),
        acted_log_prob=log_prob(Discrete(3), acted, action),
        entropy=torch.zeros(3),
        value=torch.zeros(3),
        acted_value=torch.zeros(3),
        target=torch.zeros(3),
        advantage=sign * torch.tensor(ADVANTAGES),
        weight=torch.full((3,), 1 / 3),
        clip_range=0.2,
        clip_range_value=None,
        value_cost=0.5,
        entropy_cost=0.0,
    )
    assert loss.policy.item() == pytest.approx(expected, abs=1e-5)


def q_networks() -> QNetworks:
    spaces = {"0": SubstepSpaces(observation=Box(-math.inf, math.inf, (1,)), action=Discrete(3))}
    settings = DqnSettings(dueling=False, huber_delta=1.0)
    return QNetworks(spaces, PolicySpec(), settings, substep_key="0", device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("values", "choosing"),
    [
        ([[0.0, 1.0, 0.0], [1.0, 2.0, 0.0]], None),
        ([[99.0, 1.0, 98.0], [91.0, 2.0, 66.0]], [[2.0, 10.0, 1.0], [11.0, 20.0, 1.0]]),
    ],
    ids=["Q-learning", "double Q-learning"],
)
def test_errors_of_q_learning(values: list[list[float]], choosing: list[list[float]] | None):
    online = None if choosing is None else torch.tensor(choosing)
    best = q_networks().best_values(torch.tensor(values), online, None)
    reward, discount, taken = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])
    assert (reward + discount * best - taken).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("x", "loss", "slope"),
    [(-2, 1.5, -1), (-1, 0.5, -1), (-0.5, 0.125, -0.5), (0, 0, 0), (0.5, 0.125, 0.5), (1, 0.5, 1), (2, 1.5, 1)],
)
def test_hubers_loss_and_its_gradient(x: float, loss: float, slope: float):
    networks = q_networks()
    bias = next(part for part in networks.online.parameters() if part.shape == (3,))
    with torch.no_grad():
        bias.fill_(x)
    report = networks.learn(
        bias[None],
        torch.tensor([1]),
        None,
        torch.zeros(1),
        torch.ones(1),
        count=1,
        learning_rate=0.0,
        reduction=ALONE,
    ).metrics
    assert float(report["loss"]) == loss
    assert float(report["grad_norm"]) == pytest.approx(abs(slope), rel=1e-5)
