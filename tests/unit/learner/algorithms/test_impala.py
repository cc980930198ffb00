import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollcast.actor.policies.torch_distributions import entropy, log_prob
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.one_substep import columns_of
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_critics import ACTION_SPACE, bools, make_impala, values_of
from tests.batches import make_batch


def test_update_follows_the_gradient_of_the_loss():
    valid = ~bools(5, 4, (2, 1))
    batch = make_batch(valid=valid, terminated=bools(5, 4, (1, 1)), truncated=bools(5, 4, (3, 2)))
    impala = make_impala(entropy_cost=0.3, value_cost=0.7, discount=0.9, trace_lambda=0.8)
    columns = batch.substeps[FLAT_SUBSTEP]
    observation = columns.observation[""]
    parameters = impala.policy.parameters_of({"": observation.flatten(0, 1)})
    log_pi = log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view(5, 4)
    v_t = impala._critic({"": observation.flatten(0, 1)}).view(5, 4)
    v_last = values_of(impala, columns.last_observation[""])
    returns = vtrace(
        log_rho_t=(log_pi - columns.log_prob).detach(),
        r_t=batch.reward,
        discount_t=0.9 * ~batch.terminated,
        continues_t=~(batch.terminated | batch.truncated),
        v_t=v_t.detach(),
        v_tp1=torch.cat([v_t[1:].detach(), v_last[None]]),
        lambda_=0.8,
    )
    policy_loss = -(returns.pg_advantage * log_pi)[valid].mean()
    value_loss = 0.5 * (returns.vs - v_t).square()[valid].mean()
    mean_entropy = entropy(ACTION_SPACE, parameters).view(5, 4)[valid].mean()
    networks = [*impala.policy.parameters(), *impala._critic.parameters()]
    expected = torch.autograd.grad(policy_loss + 0.7 * value_loss - 0.3 * mean_entropy, networks)

    metrics = impala.update(batch, progress=0.0)
    gradient = impala._parameters.packed(impala._parameters.vector.grad)
    torch.testing.assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]))
    for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", mean_entropy)):
        torch.testing.assert_close(metrics[name], value.detach())


def test_critic_converges_to_targets():
    impala = make_impala(learning_rate=1e-2, discount=0.0)
    batch = make_batch(reward=torch.full((5, 4), 3.0))
    losses = [float(impala.update(batch, progress=0.0)["value_loss"]) for _ in range(100)]
    assert losses[0] > 1.0
    assert losses[-1] < 0.01
    observation = batch.substeps[FLAT_SUBSTEP].observation[""].flatten(0, 1)
    torch.testing.assert_close(values_of(impala, observation), torch.full((20,), 3.0), atol=0.3, rtol=0.0)


def test_the_entropy_bonus_makes_the_policy_more_uniform():
    impala = make_impala(learning_rate=1e-2, discount=0.0, entropy_cost=1.0)
    batch = make_batch(reward=torch.zeros(5, 4))
    with torch.no_grad():
        list(impala.policy.parameters())[-1].copy_(torch.tensor([1.0, -1.0]))
    entropies = [float(impala.update(batch, progress=0.0)["entropy"]) for _ in range(60)]
    assert entropies[0] < 0.5
    assert entropies[-1] > 0.65


def target_of(impala: Impala, batch: Batch) -> Tensor:
    """The critic's targets, by what the update itself computes."""
    columns = columns_of(batch, FLAT_SUBSTEP)
    forward = impala._forward(batch, columns)
    return impala._returns(batch, torch.zeros_like(batch.reward), forward.values.detach(), batch.n_env_steps).vs


@pytest.mark.parametrize("t", [2, 4], ids=["inside", "in the last step"])
def test_truncated_episode_bootstraps_from_its_final_observation(t):
    """Reset in the same step: the next row is of another episode, the final observation comes on its own."""
    impala = make_impala(discount=0.9)
    final = torch.tensor([[5.0, -5.0, 5.0]])
    with torch.no_grad():
        list(impala._critic.parameters())[-1].fill_(2.0)
    given = {"final_index": torch.tensor([[t, 1]]), "final_observation": final}
    ended = bools(5, 4, (t, 1))
    batch = make_batch(truncated=ended, **given)
    value = values_of(impala, final)[0]
    assert value > 1.0
    torch.testing.assert_close(target_of(impala, batch)[t, 1], batch.reward[t, 1] + 0.9 * value)
    # Neither the value of nothing, which is right for termination only, nor that of the next episode's first.
    terminated = make_batch(terminated=ended, **given)
    torch.testing.assert_close(target_of(impala, terminated)[t, 1], batch.reward[t, 1])
    # The other trajectories do not notice.
    others = [0, 2, 3]
    torch.testing.assert_close(target_of(impala, batch)[:, others], target_of(impala, make_batch())[:, others])


def test_reset_row_gives_bootstrap_value_and_is_not_a_transition():
    """Reset in the next step: the row after the end is the final observation, and not valid."""
    impala = make_impala(discount=0.9)
    truncated, valid = bools(5, 4, (1, 0)), ~bools(5, 4, (2, 0))
    batch = make_batch(truncated=truncated, valid=valid)
    row = batch.substeps[FLAT_SUBSTEP].observation[""][2, 0]
    expected = batch.reward[1, 0] + 0.9 * values_of(impala, row[None])[0]
    torch.testing.assert_close(target_of(impala, batch)[1, 0], expected)

    # The content of the row does not change the update by a bit.
    reward, action = batch.reward.clone(), batch.substeps[FLAT_SUBSTEP].action.clone()
    reward[2, 0], action[2, 0] = 1e6, 1 - action[2, 0]
    other = make_impala(discount=0.9)
    impala.update(batch, progress=0.0)
    other.update(make_batch(truncated=truncated, valid=valid, reward=reward, action=action), progress=0.0)
    assert torch.equal(impala._parameters.vector, other._parameters.vector)


def test_rewards_are_scaled_and_clipped():
    batch = make_batch(reward=torch.full((5, 4), -4.0))
    done = make_batch(reward=torch.full((5, 4), -4.0), terminated=torch.ones(5, 4, dtype=torch.bool))

    def target(**settings: object) -> float:
        return float(target_of(make_impala(**settings), done)[0, 0])

    assert target() == pytest.approx(-4.0)
    assert target(reward_scale=0.1) == pytest.approx(-0.4)
    assert target(reward_clip="unit") == pytest.approx(-1.0)
    assert target(reward_clip="unit", reward_scale=0.1) == pytest.approx(-0.1)
    assert target(reward_clip="soft_asymmetric") == pytest.approx(-0.3 * np.tanh(4.0))
    assert (batch.reward == -4.0).all()


def test_normalized_advantages_do_not_depend_on_the_rewards_scale():
    gradients = []
    for scale in (1.0, 1e3):
        impala = make_impala(normalize_advantages=True, discount=0.0, entropy_cost=0.0)
        with torch.no_grad():
            list(impala._critic.parameters())[-2].zero_()
        impala.update(make_batch(reward=make_batch().reward * scale), progress=0.0)
        gradients.append(
            impala._parameters.packed(impala._parameters.vector.grad)[
                : sum(p.numel() for p in impala.policy.parameters())
            ].clone()
        )
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize(
    ("field", "value"),
    [("discount", 1.1), ("learning_rate", 0.0), ("clip_rho", -1.0), ("optimizer", "sgd"), ("gamma", 0.9)],
)
def test_rejects_settings_out_of_range(field, value):
    with pytest.raises(ValidationError, match=field):
        ImpalaSettings(**{field: value})
