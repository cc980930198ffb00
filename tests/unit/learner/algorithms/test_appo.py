"""APPO against PPO on-policy, against IMPALA off-policy, and what stale steps may still do."""

import math

import pytest
import torch

from rollcast.actor.policies.torch_distributions import entropy, log_prob
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_critics import (
    ACTION_SPACE,
    bools,
    log_prob_of,
    make_appo,
    make_impala,
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


def policy_gradient(algorithm) -> torch.Tensor:
    n = sum(parameter.numel() for parameter in algorithm.policy.parameters())
    return algorithm._parameters.packed(algorithm._parameters.vector.grad)[:n].clone()


@pytest.mark.slow
def test_one_pass_over_the_whole_batch_follows_the_gradient_of_the_loss():
    valid = torch.ones(5, 4, dtype=torch.bool)
    valid[2, 1] = False
    given = {"discount": 0.9, "trace_lambda": 0.8, "clip_rho": 0.9, "clip_c": 0.7, "clip_range": 0.3}
    appo = make_appo(**ONE_PASS, **given, value_cost=0.7, entropy_cost=0.3)
    batch = stale_batch(appo, noise(0.4), valid=valid)
    columns = batch.substeps[FLAT_SUBSTEP]
    observation = {"": columns.observation[""].flatten(0, 1)}
    parameters = appo.policy.parameters_of(observation)
    log_pi = log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view(5, 4)
    v_t = appo._critic(observation).view(5, 4)
    v_last = appo._critic({"": columns.last_observation[""]}).detach()
    log_rho = log_pi - columns.log_prob
    returns = vtrace(
        log_rho_t=(log_rho * valid).detach(),
        r_t=batch.reward,
        discount_t=torch.full((5, 4), 0.9),
        continues_t=torch.ones(5, 4, dtype=torch.bool),
        v_t=v_t.detach(),
        v_tp1=torch.cat([v_t[1:].detach(), v_last[None]]),
        clip_rho=0.9,
        clip_c=0.7,
        lambda_=0.8,
    )
    clipped = torch.minimum(log_rho.exp() * returns.advantage, log_rho.exp().clamp(0.7, 1.3) * returns.advantage)
    policy_loss, value_loss = -clipped[valid].mean(), 0.5 * (returns.vs - v_t).square()[valid].mean()
    mean_entropy = entropy(ACTION_SPACE, parameters).view(5, 4)[valid].mean()
    networks = [*appo.policy.parameters(), *appo._critic.parameters()]
    expected = torch.autograd.grad(policy_loss + 0.7 * value_loss - 0.3 * mean_entropy, networks)

    metrics = appo.update(batch, progress=0.0)
    gradient = appo._parameters.packed(appo._parameters.vector.grad)
    torch.testing.assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]))
    for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", mean_entropy)):
        torch.testing.assert_close(metrics[name], value.detach())
    kl = (log_rho.exp() - 1 - log_rho)[valid].mean().detach()
    torch.testing.assert_close(metrics["stale_kl"], kl)
    torch.testing.assert_close(metrics["approx_kl"], kl)


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


def test_where_nothing_is_clipped_the_first_step_follows_the_gradient_of_impala():
    common = {"max_grad_norm": 1e9, "discount": 0.9, "entropy_cost": 0.0}
    unbounded = {"clip_rho": math.inf, "clip_c": math.inf, "trace_lambda": 0.8}
    appo = make_appo(**ONE_PASS, **unbounded, clip_range=1e6, discount=0.9)
    impala = make_impala(**common, **unbounded, clip_pg_rho=math.inf, normalize_advantages=False)
    assert torch.equal(parameters_of(appo), parameters_of(impala))
    batch = stale_batch(appo, noise(0.5))
    for each in (appo, impala):
        each.update(batch, progress=0.0)
    torch.testing.assert_close(policy_gradient(appo), policy_gradient(impala))


@pytest.mark.parametrize(
    ("log_rho", "sign", "moves"),
    [(0.5, 1, False), (0.5, -1, True), (-0.5, -1, False), (-0.5, 1, True), (3.5, -1, False)],
)
def test_steps_outside_the_clip_range_move_the_policy_only_back_and_not_from_too_far(
    log_rho: float, sign: int, moves: bool
):
    appo = make_appo(**ONE_PASS, discount=0.0, clip_rho=math.inf)
    with torch.no_grad():
        list(appo._critic.parameters())[-1].fill_(-100.0 * sign)  # so all advantages have that sign
    appo.update(stale_batch(appo, log_rho), progress=0.0)
    assert bool(policy_gradient(appo).any()) is moves


def test_older_rollouts_are_seen_in_the_metrics():
    found = []
    for scale in (0.0, 0.1, 0.5):
        appo = make_appo()
        metrics = appo.update(stale_batch(appo, noise(scale)), progress=0.0)
        found.append([float(metrics[name]) for name in ("stale_kl", "approx_kl", "clip_fraction")])
    assert found == sorted(found)
    assert found[0][0] == pytest.approx(0.0, abs=1e-6)
    assert found[1][0] == pytest.approx(0.005, rel=0.5), "half the variance of log rho"


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


def test_truncated_episode_bootstraps_from_its_final_observation():
    appo = make_appo(discount=0.9, trace_lambda=0.0)
    with torch.no_grad():
        list(appo._critic.parameters())[-1].fill_(2.0)
    final = torch.tensor([[5.0, -5.0, 5.0]])
    given = {"final_index": torch.tensor([[2, 1]]), "final_observation": final}
    value = appo._critic({"": final}).detach()[0]
    target = {
        name: appo._prepare(on_policy_batch(appo, **{name: bools(5, 4, (2, 1))}, **given), 20)[0].target.view(5, 4)[
            2, 1
        ]
        for name in ("truncated", "terminated")
    }
    reward = make_batch().reward[2, 1]
    torch.testing.assert_close(target["truncated"], reward + 0.9 * value)
    torch.testing.assert_close(target["terminated"], reward)


def test_rows_that_are_no_transition_change_nothing():
    """Everything in such a row but its value, from which the row before bootstraps, may be anything."""
    valid = torch.ones(5, 4, dtype=torch.bool)
    valid[0] = False
    results = []
    for spoilt in (0.0, 100.0):
        appo = make_appo(n_epochs=3, minibatch_steps=20)
        change = torch.zeros(5, 4)
        change[0] = spoilt
        batch = stale_batch(appo, noise(0.3) - change, valid=valid, reward=make_batch().reward + change)
        metrics = appo.update(batch, progress=0.0)
        results.append(torch.cat([parameters_of(appo), metrics["stale_kl"].view(1)]))
    assert torch.equal(*results)


def test_batch_smaller_than_a_minibatch_is_refused_with_both_numbers():
    with pytest.raises(ConfigurationError, match=r"--appo.minibatch-steps: 64, and a batch has 20 steps .* expected"):
        make_appo(minibatch_steps=64).update(make_batch(), progress=0.0)
