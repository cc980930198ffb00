"""PPO's loss against a loop over steps, and its gradient where the surrogate is clipped."""

import math

import pytest
import torch

from rollcast.learner.algorithms.ppo_loss import PpoLoss, ppo_loss

N = 7


def arguments(**given: object) -> dict[str, object]:
    rng = torch.Generator().manual_seed(0)

    def normal(scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(N, generator=rng)

    return {
        "log_prob": normal(0.3) - 1.0,
        "acted_log_prob": normal(0.3) - 1.0,
        "entropy": normal().abs(),
        "value": normal(),
        "acted_value": normal(),
        "target": normal(),
        "advantage": normal(),
        "weight": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]) / 5,
        "clip_range": 0.2,
        "clip_range_value": None,
        "value_cost": 0.7,
        "entropy_cost": 0.3,
        **given,
    }


def brute_force(given: dict[str, object]) -> PpoLoss:
    """Equations 7 and 9, step by step, in Python's own numbers."""
    columns = {name: value.tolist() for name, value in given.items() if isinstance(value, torch.Tensor)}
    clip, clip_value = given["clip_range"], given["clip_range_value"]
    policy = value = entropy = kl = clipped = 0.0
    for i, weight in enumerate(columns["weight"]):
        log_rho = columns["log_prob"][i] - columns["acted_log_prob"][i]
        log_rho = min(log_rho, math.log(given.get("max_ratio", math.inf)))
        rho, advantage = math.exp(log_rho), columns["advantage"][i]
        bounded = min(max(rho, 1 - clip), 1 + clip)
        policy -= weight * min(rho * advantage, bounded * advantage)
        error = (columns["value"][i] - columns["target"][i]) ** 2
        if clip_value is not None:
            move = min(max(columns["value"][i] - columns["acted_value"][i], -clip_value), clip_value)
            error = max(error, (columns["acted_value"][i] + move - columns["target"][i]) ** 2)
        value += 0.5 * weight * error
        entropy += weight * columns["entropy"][i]
        kl += weight * (rho - 1 - log_rho)
        clipped += weight * (abs(rho - 1) > clip)
    total = policy + given["value_cost"] * value - given["entropy_cost"] * entropy
    return PpoLoss(*map(torch.tensor, (total, policy, value, entropy, kl, clipped)))


@pytest.mark.parametrize("more", [{}, {"clip_range_value": 0.1}, {"max_ratio": 1.3}])
def test_loss_is_that_of_a_loop_over_steps(more: dict[str, float]):
    given = arguments(**more)
    for computed, expected in zip(ppo_loss(**given), brute_force(given), strict=True):
        torch.testing.assert_close(computed, expected, check_dtype=False)


@pytest.mark.parametrize(
    ("log_rho", "advantage", "moves"),
    [(0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False), (0.1, 1.0, True)],
)
def test_gradient_vanishes_where_a_further_step_would_not_count(log_rho: float, advantage: float, moves: bool):
    log_prob = torch.full((N,), log_rho, requires_grad=True)
    given = arguments(log_prob=log_prob, acted_log_prob=torch.zeros(N), advantage=torch.full((N,), advantage))
    (gradient,) = torch.autograd.grad(ppo_loss(**given).policy, log_prob)
    assert bool((gradient != 0.0).any()) is moves


@pytest.mark.parametrize(("log_rho", "moves"), [(0.5, True), (1.5, False), (500.0, False)])
def test_bound_of_the_ratio_holds_where_the_clip_has_none(log_rho: float, moves: bool):
    log_prob = torch.full((N,), log_rho, requires_grad=True)
    given = arguments(log_prob=log_prob, acted_log_prob=torch.zeros(N), advantage=torch.full((N,), -1.0), max_ratio=3.0)
    loss = ppo_loss(**given)
    (gradient,) = torch.autograd.grad(loss.policy, log_prob)
    assert bool((gradient != 0.0).any()) is moves
    assert all(value.isfinite() for value in loss)
