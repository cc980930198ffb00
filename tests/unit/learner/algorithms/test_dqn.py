import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rollcast.actor.policies.exploration import EPSILONS, epsilon_ladder
from rollcast.actor.policies.torch_q_values import action_values
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from tests.batches import BOX_SPACES, SPACES, START_AT_THREE, B, transition_batch
from tests.networks import noise_for

SPEC = PolicySpec(hidden_sizes=(16, 16), activation="relu")
PLAIN = {"discount": 0.9, "learning_rate": 1e-3, "max_grad_norm": 1e9}


def make_dqn(seed: int = 0, device: str = "cpu", **settings: object) -> Dqn:
    dqn = Dqn(SPACES, SPEC, DqnSettings(**{**PLAIN, **settings}), device=device, seed=seed)
    with torch.no_grad():
        # Values that differ, and a target that differs from them.
        dqn._parameters.vector.add_(noise_for(dqn._parameters, 0.2, _generator(seed)))
    return dqn


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def q(dqn: Dqn, observation: Tensor, *, target: bool = False) -> Tensor:
    outputs = dqn._target.module({"": observation}) if target else dqn.policy.parameters_of({"": observation})
    return action_values(outputs, dqn.policy.spec.head)


def brute_force_targets(dqn: Dqn, batch: Batch, discount: list[float], double: bool) -> list[float]:
    following = batch.substeps["0"].last_observation[""]
    online, target = q(dqn, following).tolist(), q(dqn, following, target=True).tolist()
    result = []
    for b in range(B):
        chooser = online[b] if double else target[b]
        bootstrap = 0.0 if batch.terminated[0, b] else discount[b] * target[b][chooser.index(max(chooser))]
        result.append(float(batch.reward[0, b]) + bootstrap)
    return result


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_targets_loss_gradient_and_priorities_equal_brute_force(double, dueling):
    weights = torch.linspace(0.2, 1.0, B)
    discount = torch.tensor([0.9, 0.9, 0.81, 0.729, 0.9, 0.81])
    batch = transition_batch(weights=weights, discount=discount)
    dqn = make_dqn(double=double, dueling=dueling, huber_delta=0.5)
    assert dqn.policy.spec.head == ("dueling_q_values" if dueling else "q_values")
    target = torch.tensor(brute_force_targets(dqn, batch, discount.tolist(), double))
    columns = batch.substeps["0"]
    value = q(dqn, columns.observation[""][0])[torch.arange(B), columns.action[0]]
    losses = torch.nn.functional.huber_loss(value, target, reduction="none", delta=0.5)
    loss = (weights * losses).mean()
    expected = torch.autograd.grad(loss, list(dqn.policy.parameters()))
    assert ((value - target).abs() > 0.5).any()
    assert ((value - target).abs() < 0.5).any()

    assert dqn.priorities is None
    metrics = dqn.update(batch, progress=0.0)
    torch.testing.assert_close(
        dqn._parameters.packed(dqn._parameters.vector.grad), torch.cat([part.reshape(-1) for part in expected])
    )
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(dqn.priorities, (value - target).abs().detach())


def test_uses_discount_of_settings_if_batch_has_none():
    batch = transition_batch()
    dqn = make_dqn(reward_scale=1.0)
    target = torch.tensor(brute_force_targets(dqn, batch, [0.9] * B, True))
    columns = batch.substeps["0"]
    value = q(dqn, columns.observation[""][0])[torch.arange(B), columns.action[0]].detach()
    dqn.update(batch, progress=0.0)
    torch.testing.assert_close(dqn.priorities, (value - target).abs())


def test_supports_actions_that_do_not_start_at_zero():
    plain = Dqn(SPACES, SPEC, DqnSettings(), seed=0)
    shifted = Dqn(START_AT_THREE, SPEC, DqnSettings(), seed=0)
    batch = transition_batch()
    columns = batch.substeps["0"]
    plain.update(batch, progress=0.0)
    moved = dataclasses.replace(columns, action=columns.action + 3)
    shifted.update(dataclasses.replace(batch, substeps={"0": moved}), progress=0.0)
    assert torch.equal(plain._parameters.vector, shifted._parameters.vector)


def test_values_converge_to_rewards_without_discount():
    dqn = make_dqn(discount=0.0, learning_rate=1e-2, huber_delta=float("inf"))
    batch = transition_batch()
    losses = [float(dqn.update(batch, progress=0.0)["loss"]) for _ in range(200)]
    assert losses[-1] < 0.01 * losses[0]


def test_target_moves_at_its_interval():
    dqn = make_dqn(target_update_interval=3, target_tau=0.5)
    target = dqn._target.module
    for _ in range(2):
        before = [parameter.clone() for parameter in target.parameters()]
        for _ in range(2):
            dqn.update(transition_batch(), progress=0.0)
            assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))
        dqn.update(transition_batch(), progress=0.0)
        for old, new, source in zip(before, target.parameters(), dqn._network.parameters(), strict=True):
            torch.testing.assert_close(new, 0.5 * (old + source))


def test_policy_state_has_the_decaying_epsilon_ladder():
    dqn = make_dqn(epsilon=0.4, epsilon_end=0.1, epsilon_alpha=3.0, n_epsilons=4)
    np.testing.assert_allclose(dqn.policy_state()[EPSILONS], epsilon_ladder(4, epsilon=0.4, alpha=3.0))
    for progress, base in ((0.5, 0.25), (1.0, 0.1)):
        assert dqn.update(transition_batch(), progress=progress)["epsilon"] == pytest.approx(base)
        np.testing.assert_allclose(dqn.policy_state()[EPSILONS], epsilon_ladder(4, epsilon=base, alpha=3.0), rtol=1e-6)
    assert make_dqn(n_epsilons=1).policy_state()[EPSILONS] == pytest.approx([0.1])


def test_policy_state_has_network_and_exploration_only():
    dqn = make_dqn()
    names = set(dqn.policy_state())
    assert {name.split(".")[0] for name in names} == {"networks", "exploration"}
    assert names == set(dqn.policy.state_dict())


def test_update_returns_finite_metrics_without_gradients():
    metrics = make_dqn().update(transition_batch(), progress=0.0)
    assert metrics.keys() == {"loss", "mean_value", "mean_td_error", "grad_norm", "learning_rate", "epsilon"}
    assert all(isinstance(value, float) or (value.dim() == 0 and not value.requires_grad) for value in metrics.values())
    assert np.isfinite([float(value) for value in metrics.values()]).all()


def test_the_learning_rate_follows_progress():
    dqn = make_dqn(learning_rate=0.5, learning_rate_schedule="linear")
    assert dqn.update(transition_batch(), progress=0.5)["learning_rate"] == pytest.approx(0.25)


def test_updates_after_load_are_bit_identical(tmp_path: Path):
    settings = {"target_update_interval": 2}
    dqn = make_dqn(**settings)
    for seed in range(3):
        dqn.update(transition_batch(seed=seed), progress=0.1)
    dqn.policy.set_uniform_exploration(True)
    dqn.save(tmp_path)
    restored = make_dqn(seed=99, n_epsilons=3, **settings)
    restored.load(tmp_path)
    assert restored.n_updates == 3
    assert not restored.policy_state()["exploration.uniform"]
    for seed in range(3, 7):
        dqn.update(transition_batch(seed=seed), progress=0.1)
        restored.update(transition_batch(seed=seed), progress=0.1)
        assert torch.equal(dqn._parameters.vector, restored._parameters.vector)
        assert torch.equal(dqn.priorities, restored.priorities)


def test_rejects_other_spaces_heads_and_checkpoints(tmp_path: Path):
    make_dqn().save(tmp_path)
    with pytest.raises(ConfigurationError, match="Resume with the spaces"):
        make_dqn(dueling=False).load(tmp_path)
    with pytest.raises(InvalidSpaceError, match="need Discrete"):
        Dqn(BOX_SPACES, SPEC, DqnSettings())
    with pytest.raises(ConfigurationError, match="the algorithm needs 'dueling_q_values'"):
        Dqn(SPACES, PolicySpec(head="q_values"), DqnSettings())
    (tmp_path / "algorithm.json").write_text('{"algorithm": "impala"}')
    with pytest.raises(ConfigurationError, match="written by 'impala'; expected 'dqn'"):
        make_dqn().load(tmp_path)


def test_divergence_is_reported_and_never_sent(tmp_path: Path):
    dqn = make_dqn()
    before = dqn._parameters.vector.detach().clone()
    reward = torch.zeros(1, B)
    reward[0, 0] = float("nan")
    with pytest.raises(RollcastError, match=r"diverged within 1 updates: loss"):
        dqn.update(transition_batch(reward=reward), progress=0.0)
    assert torch.equal(before, dqn._parameters.vector)
    for act in (dqn.policy_state, lambda: dqn.save(tmp_path)):
        with pytest.raises(RollcastError, match="diverged"):
            act()


@pytest.mark.parametrize(("field", "value"), [("epsilon", 1.5), ("n_epsilons", 0), ("target_tau", 0.0), ("gamma", 1.0)])
def test_rejects_settings_out_of_range(field, value):
    with pytest.raises(ValidationError, match=field):
        DqnSettings(**{field: value})


def test_every_setting_is_explained_and_fixed():
    assert all(field.description for field in DqnSettings.model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        DqnSettings().discount = 0.5  # type: ignore[misc]
