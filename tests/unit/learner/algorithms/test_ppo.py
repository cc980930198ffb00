import pytest
import torch

from rollcast.actor.policies.torch_distributions import entropy, log_prob
from rollcast.learner.algorithms.gae import gae
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_critics import ACTION_SPACE, make_ppo, on_policy_batch, parameters_of
from tests.batches import make_batch

ONE_PASS = {"n_epochs": 1, "minibatch_steps": 20, "max_grad_norm": 1e9, "normalize_advantages": False}


@pytest.mark.slow
def test_one_pass_over_the_whole_batch_follows_the_gradient_of_the_loss():
    valid = torch.ones(5, 4, dtype=torch.bool)
    valid[2, 1] = False
    ppo = make_ppo(**ONE_PASS, discount=0.9, gae_lambda=0.8, value_cost=0.7, entropy_cost=0.3)
    batch = on_policy_batch(ppo, valid=valid)
    columns = batch.substeps[FLAT_SUBSTEP]
    observation = {"": columns.observation[""].flatten(0, 1)}
    parameters = ppo.policy.parameters_of(observation)
    log_pi = log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view(5, 4)
    v_t = ppo._critic(observation).view(5, 4)
    v_last = ppo._critic({"": columns.last_observation[""]}).detach()
    advantage, target = gae(
        r_t=batch.reward,
        discount_t=torch.full((5, 4), 0.9),
        continues_t=torch.ones(5, 4, dtype=torch.bool),
        v_t=v_t.detach(),
        v_tp1=torch.cat([v_t[1:].detach(), v_last[None]]),
        lambda_=0.8,
    )
    policy_loss = -(advantage * (log_pi - batch.substeps[FLAT_SUBSTEP].log_prob).exp())[valid].mean()
    value_loss = 0.5 * (target - v_t).square()[valid].mean()
    mean_entropy = entropy(ACTION_SPACE, parameters).view(5, 4)[valid].mean()
    networks = [*ppo.policy.parameters(), *ppo._critic.parameters()]
    expected = torch.autograd.grad(policy_loss + 0.7 * value_loss - 0.3 * mean_entropy, networks)

    metrics = ppo.update(batch, progress=0.0)
    gradient = ppo._parameters.packed(ppo._parameters.vector.grad)
    torch.testing.assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]))
    for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", mean_entropy)):
        torch.testing.assert_close(metrics[name], value.detach())


def test_every_step_is_in_one_minibatch_of_each_pass():
    ppo = make_ppo(minibatch_steps=5)
    passes = [torch.cat(list(ppo._minibatches(20))) for _ in range(2)]
    assert [order.sort().values.tolist() for order in passes] == [list(range(20))] * 2
    assert passes[0].tolist() != passes[1].tolist()


def test_rest_that_makes_no_whole_minibatch_waits_for_the_next_pass():
    assert [len(index) for index in make_ppo(minibatch_steps=6)._minibatches(20)] == [6, 6, 6]


def test_clip_range_bounds_how_far_the_policy_moves():
    moved = {}
    for clip_range in (0.05, 10.0):
        ppo = make_ppo(clip_range=clip_range, n_epochs=40, learning_rate=1e-2)
        moved[clip_range] = float(ppo.update(on_policy_batch(ppo), progress=0.0)["approx_kl"])
    assert moved[0.05] < 0.2 * moved[10.0]


def test_target_kl_ends_the_passes():
    ppo = make_ppo(target_kl=1e-3, n_epochs=50, learning_rate=1e-2)
    metrics = ppo.update(on_policy_batch(ppo), progress=0.0)
    assert 1 <= metrics["epochs"] < 50


def test_without_target_kl_every_pass_is_made():
    ppo = make_ppo(n_epochs=7, learning_rate=1e-2)
    assert ppo.update(on_policy_batch(ppo), progress=0.0)["epochs"] == 7


def test_schedules_follow_progress():
    ppo = make_ppo(clip_range_schedule="linear", entropy_cost=0.2, entropy_cost_end=0.0)
    metrics = ppo.update(on_policy_batch(ppo), progress=0.25)
    assert metrics["learning_rate"] == pytest.approx(0.75 * 3e-4)
    assert metrics["clip_range"] == pytest.approx(0.15)
    assert metrics["entropy_cost"] == pytest.approx(0.15)


def test_truncated_episode_bootstraps_from_its_final_observation():
    ppo = make_ppo(discount=0.9, gae_lambda=0.0)
    with torch.no_grad():
        list(ppo._critic.parameters())[-1].fill_(2.0)
    final = torch.tensor([[5.0, -5.0, 5.0]])
    ended = torch.zeros(5, 4, dtype=torch.bool)
    ended[2, 1] = True
    given = {"final_index": torch.tensor([[2, 1]]), "final_observation": final}
    value = ppo._critic({"": final}).detach()[0]
    target = {
        name: ppo._prepare(make_batch(**{name: ended}, **given), 20)[0].target.view(5, 4)[2, 1]
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
        ppo = make_ppo(n_epochs=3, minibatch_steps=20)
        reward = make_batch().reward.clone()
        reward[0] += spoilt
        batch = on_policy_batch(ppo, valid=valid, reward=reward)
        ppo.update(batch, progress=0.0)
        results.append(parameters_of(ppo))
    assert torch.equal(*results)


def test_batch_smaller_than_a_minibatch_is_refused_with_both_numbers():
    with pytest.raises(ConfigurationError, match=r"minibatch-steps: 64, and a batch has 20 steps .* expected"):
        make_ppo(minibatch_steps=64).update(make_batch(), progress=0.0)
