import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary
from pydantic import ValidationError
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import BOX_SPACES, SPACES, B, transition_batch
from tests.networks import noise_for

SPEC = PolicySpec(hidden_sizes=(16, 16), activation="relu")
OWN = "tests.unit.learner.algorithms.test_sac:make_own"
PLAIN = {"discount": 0.9, "initial_temperature": 0.3}
KINDS = pytest.mark.parametrize("box", [True, False], ids=["box", "discrete"])
# Twins, REDQ's with the layer norm of RLPD, SAC-N's, and one critic.
REDQ = {"n_critics": 5, "critic_layer_norm": True}
ENSEMBLES = pytest.mark.parametrize(
    "ensemble", [{}, REDQ, {"n_critics": 3, "target_critics": 3}, {"n_critics": 1}], ids=["twins", "redq", "n", "one"]
)


def make_own(observation_space, n_outputs):
    class Own(torch.nn.Linear):
        def forward(self, observation):
            return super().forward(observation[""])

    return Own(3, n_outputs)


def make_sac(box: bool, seed: int = 0, *, spec: PolicySpec = SPEC, **settings: object) -> Sac:
    sac = Sac(BOX_SPACES if box else SPACES, spec, SacSettings(**{**PLAIN, **settings}), seed=seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameters in (sac._policy_parameters, sac._critic_parameters):
            # Opinions that differ, and targets that differ from them.
            parameters.vector.add_(noise_for(parameters, 0.2, rng))
    return sac


def squashed(outputs: Tensor) -> TransformedDistribution:
    mean, log_std = outputs.chunk(2, dim=-1)
    return Independent(TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)]), 1)


def td_errors(sac: Sac, batch: Batch, noise: Tensor, box: bool) -> Tensor:
    """TD errors `[E, B]` with their graph, by torch.distributions."""
    members = sac._target_members() or range(len(sac._critics))

    def least(values: Tensor) -> Tensor:
        return torch.stack([values[member] for member in members]).min(dim=0).values

    columns = batch.substeps["0"]
    observation, following = {"": columns.observation[""][0]}, columns.last_observation
    alpha = sac._log_temperature.detach().exp()
    discount = 0.9 * ~batch.terminated[0]
    with torch.no_grad():
        outputs = sac.policy.parameters_of(following)
        if box:
            mean, log_std = outputs.chunk(2, dim=-1)
            action = (mean + log_std.exp() * noise).tanh()
            value = least(sac._targets.module(following, action)) - alpha * squashed(outputs).log_prob(action)
        else:
            pi = Categorical(logits=outputs)
            value = (pi.probs * least(sac._targets.module(following))).sum(-1) + alpha * pi.entropy()
        target = batch.reward[0] + discount * value
    if box:
        normal = columns.action[0] / torch.tensor([2.0, 5.0]) - torch.tensor([0.0, 1.0])
        taken = sac._critics(observation, normal)
    else:
        taken = torch.stack([every[torch.arange(B), columns.action[0]] for every in sac._critics(observation)])
    return taken - target


@ENSEMBLES
@KINDS
def test_critic_gradient_equals_that_of_documented_loss(box, ensemble):
    weights = torch.linspace(0.2, 1.0, B)
    batch = transition_batch(box=box, weights=weights)
    sac = make_sac(box, **ensemble)
    noise = torch.randn(B, 2, generator=torch.Generator().manual_seed(0))
    errors = td_errors(sac, batch, noise, box)
    loss = 0.5 * (weights * errors.square()).sum(dim=0).mean()
    expected = torch.autograd.grad(loss, list(sac._critics.parameters()))

    assert sac.priorities is None
    metrics = sac.update(batch, progress=0.0)
    torch.testing.assert_close(
        sac._critic_parameters.packed(sac._critic_parameters.vector.grad),
        torch.cat([part.reshape(-1) for part in expected]),
        rtol=1e-4,
        atol=1e-5,
    )
    torch.testing.assert_close(metrics["critic_loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sac.priorities, errors.detach().abs().mean(dim=0), rtol=1e-4, atol=1e-5)


@ENSEMBLES
@KINDS
def test_policy_gradient_equals_that_of_documented_loss(box, ensemble):
    weights = torch.linspace(0.2, 1.0, B)
    batch = transition_batch(box=box, weights=weights)
    # Critics that stay nearly where they are, since the policy asks them after their step.
    sac = make_sac(box, critic_learning_rate=1e-12, target_entropy=0.1, **ensemble)
    rng = torch.Generator().manual_seed(0)
    _, noise = (torch.randn(B, 2, generator=rng) for _ in range(2))
    observation = {"": batch.substeps["0"].observation[""][0]}
    outputs = sac.policy.parameters_of(observation)
    alpha = 0.3

    def valued(values: Tensor) -> Tensor:
        return values.mean(dim=0) if ensemble is REDQ else values.min(dim=0).values

    if box:
        mean, log_std = outputs.chunk(2, dim=-1)
        action = (mean + log_std.exp() * noise).tanh()
        entropy = -squashed(outputs).log_prob(action)
        losses = -alpha * entropy - valued(sac._critics(observation, action))
    else:
        pi = Categorical(logits=outputs)
        entropy = pi.entropy()
        losses = -alpha * entropy - (pi.probs * valued(sac._critics(observation)).detach()).sum(-1)
    loss = (weights * losses).mean()
    expected = torch.autograd.grad(loss, list(sac.policy.parameters()), retain_graph=True)

    metrics = sac.update(batch, progress=0.0)
    torch.testing.assert_close(
        sac._policy_parameters.packed(sac._policy_parameters.vector.grad),
        torch.cat([part.reshape(-1) for part in expected]),
        rtol=1e-3,
        atol=1e-5,
    )
    torch.testing.assert_close(metrics["policy_loss"], loss.detach(), rtol=1e-3, atol=1e-3)
    mean_entropy = (weights * entropy).mean().detach()
    torch.testing.assert_close(metrics["entropy"], mean_entropy, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sac._log_temperature.grad, mean_entropy - 0.1 * weights.mean(), rtol=1e-3, atol=1e-3)


def test_critics_of_the_target_are_drawn_anew_in_each_update():
    sac = make_sac(box=False, **REDQ)
    drawn = []
    for seed in range(40):
        drawn.append(tuple(sorted(sac._target_members())))
        sac.update(transition_batch(seed=seed), progress=0.0)
    assert {len(set(members)) for members in drawn} == {2}
    assert len(set(drawn)) == 10, "each of the 10 pairs"
    assert make_sac(box=False)._target_members() is None


@KINDS
def test_policy_and_temperature_learn_in_one_of_so_many_updates(box):
    sac = make_sac(box, policy_update_interval=3, **REDQ)
    changed = []
    for seed in range(7):
        before = sac._policy_parameters.vector.clone(), sac._log_temperature.clone()
        critics = sac._critic_parameters.vector.clone()
        metrics = sac.update(transition_batch(box=box, seed=seed), progress=0.0)
        after = sac._policy_parameters.vector, sac._log_temperature
        changed.append(not torch.equal(before[0], after[0]))
        assert torch.equal(before[1], after[1]) != changed[-1]
        assert not torch.equal(critics, sac._critic_parameters.vector)
        assert metrics.keys() >= {"policy_loss", "entropy", "policy_grad_norm"}
    assert changed == [True, False, False, True, False, False, True]


@KINDS
def test_temperature_moves_towards_target_entropy(box):
    for target_entropy, direction in ((50.0, 1.0), (-50.0, -1.0)):
        sac = make_sac(box, target_entropy=target_entropy)
        before = sac._log_temperature.item()
        sac.update(transition_batch(box=box), progress=0.0)
        assert math.copysign(1.0, sac._log_temperature.item() - before) == direction
    fixed = make_sac(box, learn_temperature=False)
    for _ in range(2):
        assert float(fixed.update(transition_batch(box=box), progress=0.0)["temperature"]) == pytest.approx(0.3)


def test_critics_value_clipped_actions_as_executed():
    chosen = torch.tensor([[[-9.0, 5.0], [0.5, 11.0], [2.0, 10.0], [1e6, -1e6], [-2.0, 0.0], [2.1, 3.0]]])
    space = BOX_SPACES["0"].action
    executed = torch.from_numpy(ExecutedActions(space)(chosen.numpy()))
    learnt = []
    for action in (chosen, executed):
        sac, batch = make_sac(box=True), transition_batch(box=True)
        columns = dataclasses.replace(batch.substeps["0"], action=action)
        metrics = sac.update(dataclasses.replace(batch, substeps={"0": columns}), progress=0.0)
        learnt.append((metrics["critic_loss"], sac.priorities, sac._critic_parameters.vector.detach()))
    torch.testing.assert_close(learnt[0], learnt[1], rtol=0, atol=0)


def test_target_entropies_are_those_of_the_papers():
    assert make_sac(True)._actions.target_entropy({}) == -2.0
    assert make_sac(False)._actions.target_entropy({}) == pytest.approx(0.98 * math.log(2.0))
    halved = make_sac(False, target_entropy_ratio=0.5)
    assert halved._actions.target_entropy({}) == pytest.approx(0.5 * math.log(2.0))


@KINDS
def test_the_targets_follow_the_critics(box):
    sac = make_sac(box, tau=0.25)
    before = [parameter.clone() for parameter in sac._targets.module.parameters()]
    sac.update(transition_batch(box=box), progress=0.0)
    for old, new, source in zip(before, sac._targets.module.parameters(), sac._critics.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25 * (source - old))
    assert all(parameter.requires_grad for parameter in sac._critics.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("ensemble", [{}, REDQ], ids=["twins", "redq"])
@KINDS
def test_critics_converge_to_rewards_and_policy_follows_them(box, ensemble):
    rates = {"critic_learning_rate": 1e-2, "policy_learning_rate": 1e-2}
    sac = make_sac(box, discount=0.0, learn_temperature=False, **rates, **ensemble)
    losses = []
    for seed in range(300):
        action = transition_batch(box=box, seed=seed).substeps["0"].action
        batch = transition_batch(box=box, seed=seed, reward=action[..., 0] if box else 3.0 * action)
        losses.append(float(sac.update(batch, progress=0.0)["critic_loss"]))
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20])
    outputs = sac.policy.parameters_of({"": batch.substeps["0"].observation[""][0]})
    assert ((outputs[:, 0] > 0.5) if box else (outputs[:, 1] > outputs[:, 0] + 0.5)).all()


@KINDS
def test_policy_state_has_no_critics(box):
    state = make_sac(box).policy_state()
    assert {name.split(".")[0] for name in state} == {"networks", "exploration"}
    assert state["exploration.uniform"] == 0


@KINDS
def test_update_returns_finite_metrics_without_gradients(box):
    metrics = make_sac(box).update(transition_batch(box=box), progress=0.0)
    assert metrics.keys() >= {"critic_loss", "policy_loss", "entropy", "temperature", "mean_value"}
    assert all(isinstance(value, float) or (value.dim() == 0 and not value.requires_grad) for value in metrics.values())
    assert np.isfinite([float(value) for value in metrics.values()]).all()


@pytest.mark.parametrize("ensemble", [{}, {**REDQ, "policy_update_interval": 2}], ids=["twins", "redq"])
@KINDS
def test_updates_after_load_are_bit_identical(box, ensemble, tmp_path: Path):
    sac = make_sac(box, **ensemble)
    for seed in range(3):
        sac.update(transition_batch(box=box, seed=seed), progress=0.1)
    sac.save(tmp_path)
    restored = make_sac(box, seed=99, **ensemble)
    restored.load(tmp_path)
    assert restored.n_updates == 3
    for seed in range(3, 6):
        for one in (sac, restored):
            one.update(transition_batch(box=box, seed=seed), progress=0.1)
        assert torch.equal(sac._policy_parameters.vector, restored._policy_parameters.vector)
        assert torch.equal(sac._critic_parameters.vector, restored._critic_parameters.vector)
        assert torch.equal(sac._targets._vector, restored._targets._vector)
        assert torch.equal(sac._log_temperature, restored._log_temperature)


@KINDS
def test_seed_decides_the_networks_and_leaves_the_global_generator_alone(box):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    vectors = []
    for seed in (0, 0, 1):
        sac = make_sac(box, seed)
        sac.update(transition_batch(box=box), progress=0.0)
        vectors.append(sac._policy_parameters.vector)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@KINDS
def test_own_network_is_used_for_policy_and_critics(box):
    sac = make_sac(box, spec=PolicySpec(network=OWN, hidden_sizes=(8,)))
    critics = sac._critic_parameters
    before = critics.packed(critics.vector.detach())
    sac.update(transition_batch(box=box), progress=0.0)
    assert (critics.packed(critics.vector) != before).float().mean() > 0.5


def test_rejects_other_spaces_heads_and_checkpoints(tmp_path: Path):
    make_sac(True).save(tmp_path)
    with pytest.raises(ConfigurationError, match="Resume with the spaces"):
        make_sac(False).load(tmp_path)
    state = make_sac(True).policy_state()
    for settings, message in (
        ({"n_critics": 3}, "n_critics 2; expected 3, as of this run; set --sac.n-critics to that, or give the file"),
        ({"critic_layer_norm": True}, "critic_layer_norm False; expected True.*set --sac.critic-layer-norm"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make_sac(True, **settings).begin_with(state, tmp_path)
        assert not make_sac(True, **settings).begin_with(state, None), "a policy has no critics"
    observation = SPACES["0"].observation
    with pytest.raises(ConfigurationError, match="SAC supports Box and Discrete"):
        Sac({"0": SubstepSpaces(observation=observation, action=MultiBinary(2))}, SPEC, SacSettings())
    unbounded = Box(-np.inf, np.inf, (2,), np.float32)
    with pytest.raises(InvalidSpaceError, match="bounds are finite"):
        Sac({"0": SubstepSpaces(observation=observation, action=unbounded)}, SPEC, SacSettings())
    (tmp_path / "algorithm.json").write_text('{"algorithm": "dqn"}')
    with pytest.raises(ConfigurationError, match="written by 'dqn'; expected 'sac'"):
        make_sac(True).load(tmp_path)


@KINDS
def test_divergence_is_reported_and_never_sent(box, tmp_path: Path):
    sac = make_sac(box)
    reward = torch.zeros(1, B)
    reward[0, 0] = float("inf")
    with pytest.raises(RollcastError, match=r"diverged within 1 updates: critic loss"):
        sac.update(transition_batch(box=box, reward=reward), progress=0.0)
    for act in (sac.policy_state, lambda: sac.save(tmp_path)):
        with pytest.raises(RollcastError, match="diverged"):
            act()


@pytest.mark.parametrize(
    ("field", "value"), [("tau", 0.0), ("initial_temperature", 0.0), ("target_entropy_ratio", 2.0)]
)
def test_rejects_settings_out_of_range(field, value):
    with pytest.raises(ValidationError, match=field):
        SacSettings(**{field: value})


def test_rejects_more_critics_of_the_target_than_there_are():
    with pytest.raises(ValidationError, match="target_critics is 3 of n_critics 2; expected at most so many"):
        SacSettings(target_critics=3)
    assert SacSettings(n_critics=1).n_target_critics == 1


def test_every_setting_is_explained_and_fixed():
    assert all(field.description for field in SacSettings.model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        SacSettings().discount = 0.5  # type: ignore[misc]
