from pathlib import Path

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
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import SPACES, make_batch

SPEC = PolicySpec(hidden_sizes=(16, 16))
ACTION_SPACE = SPACES[FLAT_SUBSTEP].action
PLAIN = {"reward_scale": 1.0, "max_grad_norm": 1e9, "adam_beta1": 0.9, "learning_rate": 1e-3}


def make_impala(seed: int = 0, device: str = "cpu", **settings: object) -> Impala:
    return Impala(SPACES, SPEC, ImpalaSettings(**{**PLAIN, **settings}), device=device, seed=seed)


def log_prob_of(impala: Impala, batch: Batch) -> Tensor:
    columns = batch.substeps[FLAT_SUBSTEP]
    with torch.no_grad():
        parameters = impala.policy.parameters_of({"": columns.observation[""].flatten(0, 1)})
        return log_prob(ACTION_SPACE, parameters, columns.action.flatten()).view_as(batch.reward)


def values_of(impala: Impala, observation: Tensor) -> Tensor:
    with torch.no_grad():
        return impala._critic({"": observation})


def bools(n_steps: int, n_envs: int, *true: tuple[int, int]) -> Tensor:
    column = torch.zeros(n_steps, n_envs, dtype=torch.bool)
    for t, b in true:
        column[t, b] = True
    return column


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
    gradient = impala._parameters.vector.grad
    torch.testing.assert_close(gradient, torch.cat([part.reshape(-1) for part in expected]))
    for name, value in (("policy_loss", policy_loss), ("value_loss", value_loss), ("entropy", mean_entropy)):
        torch.testing.assert_close(metrics[name], value.detach())


def test_update_returns_finite_metrics_without_gradients():
    metrics = make_impala().update(make_batch(), progress=0.0)
    assert metrics.keys() >= {"policy_loss", "value_loss", "entropy", "policy_grad_norm", "mean_rho", "learning_rate"}
    assert all(isinstance(value, float) or (value.dim() == 0 and not value.requires_grad) for value in metrics.values())
    assert np.isfinite([float(value) for value in metrics.values()]).all()


def test_rewarded_actions_become_likelier():
    impala = make_impala(entropy_cost=0.0, learning_rate=1e-2, discount=0.0)
    action = make_batch().substeps[FLAT_SUBSTEP].action
    batch = make_batch(reward=action.float())
    before = log_prob_of(impala, batch)
    for _ in range(30):
        impala.update(batch, progress=0.0)
    gain = log_prob_of(impala, batch) - before
    assert gain[action == 1].min() > 0.05
    assert gain[action == 0].max() < -0.05


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
    return impala._returns(batch, torch.zeros_like(batch.reward), forward.values.detach()).vs


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
        gradients.append(impala._parameters.vector.grad[: sum(p.numel() for p in impala.policy.parameters())].clone())
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-3)


def test_schedules_follow_progress():
    impala = make_impala(learning_rate=0.5, learning_rate_schedule="linear", entropy_cost=0.2, entropy_cost_end=0.1)
    metrics = impala.update(make_batch(), progress=0.5)
    assert metrics["learning_rate"] == pytest.approx(0.25)
    assert metrics["entropy_cost"] == pytest.approx(0.15)
    before = impala._parameters.vector.detach().clone()
    assert impala.update(make_batch(), progress=1.0)["learning_rate"] == 0.0
    assert torch.equal(before, impala._parameters.vector)


def test_the_policy_state_is_a_snapshot_of_the_policy_alone():
    impala = make_impala()
    state = impala.policy_state()
    assert state.keys() == impala.policy.state_dict().keys()
    before = {name: array.copy() for name, array in state.items()}
    impala.update(make_batch(), progress=0.0)
    assert all(np.array_equal(before[name], array) for name, array in state.items())
    assert any(not np.array_equal(before[name], array) for name, array in impala.policy_state().items())


def test_the_seed_decides_the_networks_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    vectors = [make_impala(seed)._parameters.vector for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"optimizer": "rmsprop", "rmsprop_momentum": 0.9}])
def test_updates_after_load_are_bit_identical(settings, tmp_path):
    impala = make_impala(**settings)
    for seed in range(3):
        impala.update(make_batch(seed=seed), progress=0.1)
    impala.save(tmp_path / "checkpoint")
    restored = make_impala(seed=99, **settings)
    restored.load(tmp_path / "checkpoint")
    assert restored.n_updates == 3
    for seed in range(3, 6):
        impala.update(make_batch(seed=seed), progress=0.1)
        restored.update(make_batch(seed=seed), progress=0.1)
        assert torch.equal(impala._parameters.vector, restored._parameters.vector)
    assert all(np.array_equal(array, restored.policy_state()[name]) for name, array in impala.policy_state().items())


def test_rejects_checkpoint_that_does_not_fit(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"not a checkpoint: algorithm.safetensors, algorithm.json missing"):
        make_impala().load(tmp_path)
    make_impala().save(tmp_path)
    with pytest.raises(ConfigurationError, match="optimizer 'adam'; expected 'impala' with 'rmsprop'"):
        make_impala(optimizer="rmsprop").load(tmp_path)
    wider = Impala(SPACES, PolicySpec(hidden_sizes=(32, 16)), ImpalaSettings())
    with pytest.raises(ConfigurationError, match=r"has shape \[16, 3\]; expected \[32, 3\]"):
        wider.load(tmp_path)
    deeper = Impala(SPACES, PolicySpec(hidden_sizes=(16, 16, 16)), ImpalaSettings())
    with pytest.raises(ConfigurationError, match="Resume with the spaces, the network"):
        deeper.load(tmp_path)
    (tmp_path / "algorithm.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        make_impala().load(tmp_path)


def test_divergence_is_reported_and_never_sent(tmp_path):
    impala = make_impala()
    reward = torch.zeros(5, 4)
    reward[0, 0] = float("inf")
    before = impala._parameters.vector.detach().clone()
    with pytest.raises(RollcastError, match=r"diverged within 1 updates: policy loss, value loss.*not finite"):
        impala.update(make_batch(reward=reward), progress=0.0)
    assert torch.equal(before, impala._parameters.vector)
    with pytest.raises(RollcastError, match="diverged"):
        impala.policy_state()
    with pytest.raises(RollcastError, match="diverged"):
        impala.save(tmp_path)


def test_rejects_several_substeps_and_batches_of_other_substeps():
    spaces = {"red": SPACES[FLAT_SUBSTEP], "blue": SPACES[FLAT_SUBSTEP]}
    with pytest.raises(ConfigurationError, match=r"has 2 substeps \['blue', 'red'\]; IMPALA supports exactly 1"):
        Impala(spaces, SPEC, ImpalaSettings())
    impala = Impala({"red": SPACES[FLAT_SUBSTEP]}, SPEC, ImpalaSettings())
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        impala.update(make_batch(), progress=0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("discount", 1.1), ("learning_rate", 0.0), ("clip_rho", -1.0), ("optimizer", "sgd"), ("gamma", 0.9)],
)
def test_rejects_settings_out_of_range(field, value):
    with pytest.raises(ValidationError, match=field):
        ImpalaSettings(**{field: value})


def test_every_setting_is_explained_and_fixed():
    assert all(field.description for field in ImpalaSettings.model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        ImpalaSettings().discount = 0.5  # type: ignore[misc]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
def test_an_update_stays_on_the_device():
    impala = make_impala(device="cuda")
    batch = make_batch(
        device="cuda",
        truncated=bools(5, 4, (2, 1)),
        final_index=torch.tensor([[2, 1]]),
        final_observation=torch.ones(1, 3),
    )
    impala.update(batch, progress=0.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics = impala.update(batch, progress=0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metrics["policy_loss"].is_cuda
    assert all(isinstance(array, np.ndarray) for array in impala.policy_state().values())
