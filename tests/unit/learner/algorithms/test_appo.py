"""APPO against PPO on-policy, against IMPALA off-policy, and what stale steps may still do."""

import math

import pytest
import torch

from rollcast.learner.batch import Batch
from tests.actor_critics import (
    bools,
    log_prob_of,
    make_appo,
    make_ppo,
    on_policy_batch,
    parameters_of,
)
from tests.batches import make_batch

ONE_PASS = {"n_epochs": 1, "minibatch_steps": 20, "max_grad_norm": 1e9, "normalize_advantages": False}


def stale_batch(appo, log_rho: torch.Tensor | float, **given: object) -> Batch:
    """Returns a batch whose actions the policy that learns draws exp(log_rho) times as often as the one that acted."""
    return make_batch(**given, log_prob=log_prob_of(appo, make_batch(**given)) - log_rho)


def noise(scale: float) -> torch.Tensor:
    return scale * torch.randn(5, 4, generator=torch.Generator().manual_seed(3))


def test_batches_of_the_policy_that_learns_give_the_update_of_ppo():
    given = {"n_epochs": 3, "learning_rate": 1e-2, "clip_range_value": 0.5, "entropy_cost": 0.01}
    appo, ppo = make_appo(**given, trace_lambda=0.9), make_ppo(**given, gae_lambda=0.9)
    batch = on_policy_batch(ppo, truncated=bools(5, 4, (2, 1)), terminated=bools(5, 4, (3, 2)))
    metrics, expected = (each.update(batch, progress=0.0) for each in (appo, ppo))
    torch.testing.assert_close(parameters_of(appo), parameters_of(ppo))
    assert metrics.keys() - expected.keys() == {"stale_kl"}
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    assert float(metrics["stale_kl"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("log_rho", "sign", "moves"),
    [(0.5, 1, False), (0.5, -1, True), (-0.5, -1, False), (-0.5, 1, True), (3.5, -1, False)],
)
def test_steps_outside_the_clip_range_move_the_policy_only_back_and_not_from_too_far(
    log_rho: float, sign: int, moves: bool
):
    appo = make_appo(**ONE_PASS, discount=0.0, clip_rho=math.inf, entropy_cost=0.0)
    # rewards far from the first values, so that all advantages have that sign
    batch = stale_batch(appo, log_rho, reward=torch.full((5, 4), 100.0 * sign))
    assert bool(appo.update(batch, progress=0.0)["policy_grad_norm"] > 0.0) is moves


def test_batch_that_is_already_too_far_gets_one_pass():
    appo = make_appo(target_kl=0.01, n_epochs=5)
    assert appo.update(stale_batch(appo, noise(0.5)), progress=0.0)["epochs"] == 1


def test_steps_that_the_policy_has_left_for_good_keep_training_finite():
    """Their probabilities differ by more than float32 can hold."""
    for log_rho in (-200.0, 200.0):
        appo = make_appo()
        metrics = appo.update(stale_batch(appo, torch.full((5, 4), log_rho)), progress=0.0)
        assert all(math.isfinite(float(value)) for value in metrics.values()), log_rho
        assert parameters_of(appo).isfinite().all()
