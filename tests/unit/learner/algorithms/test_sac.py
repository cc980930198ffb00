import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary
from pydantic import ValidationError
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.learner.algorithms.critics import CriticEnsemble
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import BOX_SPACES, SPACES, B, transition_batch, with_columns
from tests.learnt import first_gradient, joined, learnt, shake, teach

SPEC = PolicySpec(hidden_sizes=(16, 16), activation="relu")
PLAIN = {"discount": 0.9, "initial_temperature": 0.3}
KINDS = pytest.mark.parametrize("box", [True, False], ids=["box", "discrete"])
# Twins, REDQ's with the layer norm of RLPD, SAC-N's, and one critic.
REDQ = {"n_critics": 5, "critic_layer_norm": True}
ENSEMBLES = pytest.mark.parametrize(
    "ensemble", [{}, REDQ, {"n_critics": 3, "target_critics": 3}, {"n_critics": 1}], ids=["twins", "redq", "n", "one"]
)


def make_sac(box: bool, seed: int = 0, *, spec: PolicySpec = SPEC, **settings: object) -> Sac:
    """Opinions that differ, and targets that differ from them."""
    sac = Sac(BOX_SPACES if box else SPACES, spec, SacSettings(**{**PLAIN, **settings}), seed=seed)
    shake(sac, "policy", "critics", deviation=0.2, seed=seed)
    return sac


def critics_of(sac: Sac, box: bool, ensemble: Mapping[str, object], part: str = "critics") -> CriticEnsemble:
    """Copies of the critics, or of their targets."""
    kind = {"n_critics": ensemble.get("n_critics", 2), "layer_norm": ensemble.get("critic_layer_norm", False)}
    critics = CriticEnsemble(BOX_SPACES if box else SPACES, SPEC, substep_key="0", **kind)
    critics.load_state_dict(learnt(sac, part))
    return critics


def squashed(outputs: Tensor) -> TransformedDistribution:
    mean, log_std = outputs.chunk(2, dim=-1)
    return Independent(TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)]), 1)


def td_errors(sac: Sac, critics: CriticEnsemble, targets: CriticEnsemble, batch: Batch, noise: Tensor, box: bool):
    """TD errors of every critic, by every choice of the critics of the target: [E, B] with their graph."""
    columns = batch.substeps["0"]
    observation, following = {"": columns.observation[""][0]}, columns.last_observation
    with torch.no_grad():
        outputs = sac.policy.parameters_of(following)
        if box:
            mean, log_std = outputs.chunk(2, dim=-1)
            action = (mean + log_std.exp() * noise).tanh()
            values, entropy = targets(following, action), -squashed(outputs).log_prob(action)
        else:
            pi = Categorical(logits=outputs)
            values, entropy = targets(following), pi.entropy()
    if box:
        normal = columns.action[0] / torch.tensor([2.0, 5.0]) - torch.tensor([0.0, 1.0])
        taken = critics(observation, normal)
    else:
        taken = torch.stack([every[torch.arange(B), columns.action[0]] for every in critics(observation)])

    def errors(members: Sequence[int]) -> Tensor:
        least = torch.stack([values[member] for member in members]).min(dim=0).values
        soft = (least if box else (pi.probs * least).sum(-1)) + 0.3 * entropy
        return taken - (batch.reward[0] + 0.9 * ~batch.terminated[0] * soft)

    return errors


@ENSEMBLES
@KINDS
def test_critic_gradient_equals_that_of_documented_loss(box, ensemble):
    weights = torch.linspace(0.2, 1.0, B)
    batch = transition_batch(box=box, weights=weights)
    sac = make_sac(box, **ensemble)
    critics, targets = (critics_of(sac, box, ensemble, part) for part in ("critics", "targets"))
    errors_with = td_errors(
        sac, critics, targets, batch, torch.randn(B, 2, generator=torch.Generator().manual_seed(0)), box
    )
    metrics = sac.update(batch, progress=0.0)
    n, n_of_target = len(critics), SacSettings(**ensemble).n_target_critics
    candidates = [errors_with(members) for members in itertools.combinations(range(n), n_of_target)]
    errors = min(candidates, key=lambda each: float((each.detach().abs().mean(dim=0) - sac.priorities).abs().max()))
    torch.testing.assert_close(sac.priorities, errors.detach().abs().mean(dim=0), rtol=1e-4, atol=1e-5)
    loss = 0.5 * (weights * errors.square()).sum(dim=0).mean()
    torch.testing.assert_close(metrics["critic_loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    expected = joined(torch.autograd.grad(loss, list(critics.parameters())))
    torch.testing.assert_close(first_gradient(sac, "critic_optimizer"), expected, rtol=1e-4, atol=1e-5)


@ENSEMBLES
@KINDS
def test_policy_gradient_equals_that_of_documented_loss(box, ensemble):
    weights = torch.linspace(0.2, 1.0, B)
    batch = transition_batch(box=box, weights=weights)
    # Critics that stay nearly where they are, since the policy asks them after their step.
    sac = make_sac(box, critic_learning_rate=1e-12, target_entropy=0.1, **ensemble)
    critics = critics_of(sac, box, ensemble)
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
        losses = -alpha * entropy - valued(critics(observation, action))
    else:
        pi = Categorical(logits=outputs)
        entropy = pi.entropy()
        losses = -alpha * entropy - (pi.probs * valued(critics(observation)).detach()).sum(-1)
    loss = (weights * losses).mean()
    expected = joined(torch.autograd.grad(loss, list(sac.policy.parameters()), retain_graph=True))

    metrics = sac.update(batch, progress=0.0)
    torch.testing.assert_close(first_gradient(sac, "policy_optimizer"), expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(metrics["policy_loss"], loss.detach(), rtol=1e-3, atol=1e-3)
    mean_entropy = (weights * entropy).mean().detach()
    torch.testing.assert_close(metrics["entropy"], mean_entropy, rtol=1e-3, atol=1e-3)
    of_temperature = first_gradient(sac, "temperature_optimizer")
    torch.testing.assert_close(of_temperature, mean_entropy - 0.1 * weights.mean(), rtol=1e-3, atol=1e-3)


def test_critics_of_the_target_are_drawn_anew_in_each_update():
    """With targets that each say another constant, the errors tell which two were drawn."""
    sac = make_sac(box=False, discount=1.0, tau=1e-9, learn_temperature=False, critic_learning_rate=1e-12, **REDQ)
    arrays = {name: torch.zeros_like(array) for name, array in learnt(sac).items() if name.startswith("targets.")}
    for i in range(5):
        arrays[f"targets.networks.{i}.layers.2.bias"] += 100.0 * i
    teach(sac, arrays)
    smallest = set()
    for _ in range(40):
        sac.update(transition_batch(reward=torch.zeros(1, B), terminated=torch.zeros(1, B).bool()), progress=0.0)
        smallest.add(round(float(sac.priorities[0]) / 100.0))
    assert smallest == {0, 1, 2, 3}, "the smaller of two of five, each of which is drawn"


@KINDS
def test_policy_and_temperature_learn_in_one_of_so_many_updates(box):
    sac = make_sac(box, policy_update_interval=3, **REDQ)
    changed, before = [], learnt(sac)
    for seed in range(7):
        metrics = sac.update(transition_batch(box=box, seed=seed), progress=0.0)
        after = learnt(sac)
        moved = {name.split(".")[0] for name, array in before.items() if not torch.equal(array, after[name])}
        changed.append("policy" in moved)
        assert ("log_temperature" in moved) is changed[-1]
        assert "critics" in moved
        of_policy = {"policy_loss", "entropy", "policy_grad_norm"}
        assert metrics.keys() & of_policy == (of_policy if changed[-1] else set()), (
            "a record has the means of those made"
        )
        before = after
    assert changed == [True, False, False, True, False, False, True]


@KINDS
def test_temperature_moves_towards_target_entropy(box):
    for target_entropy, higher in ((50.0, True), (-50.0, False)):
        sac = make_sac(box, target_entropy=target_entropy)
        before = learnt(sac)["log_temperature"]
        sac.update(transition_batch(box=box), progress=0.0)
        assert bool(learnt(sac)["log_temperature"] > before) is higher
    fixed = make_sac(box, learn_temperature=False)
    for _ in range(2):
        assert float(fixed.update(transition_batch(box=box), progress=0.0)["temperature"]) == pytest.approx(0.3)


def test_critics_value_clipped_actions_as_executed():
    chosen = torch.tensor([[[-9.0, 5.0], [0.5, 11.0], [2.0, 10.0], [1e6, -1e6], [-2.0, 0.0], [2.1, 3.0]]])
    space = BOX_SPACES["0"].action
    executed = torch.from_numpy(ExecutedActions(space)(chosen.numpy()))
    found = []
    for action in (chosen, executed):
        sac, batch = make_sac(box=True), transition_batch(box=True)
        metrics = sac.update(with_columns(batch, action=action), progress=0.0)
        found.append((metrics["critic_loss"], sac.priorities, learnt(sac)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("box", "settings", "target"),
    [(True, {}, -2.0), (False, {}, 0.98 * math.log(2.0)), (False, {"target_entropy_ratio": 0.5}, 0.5 * math.log(2.0))],
)
def test_target_entropies_are_those_of_the_papers(box: bool, settings: dict[str, float], target: float):
    sac = make_sac(box, **settings)
    metrics = sac.update(transition_batch(box=box), progress=0.0)
    error = first_gradient(sac, "temperature_optimizer")
    torch.testing.assert_close(error, metrics["entropy"] - target, rtol=1e-4, atol=1e-5)


@KINDS
def test_the_targets_follow_the_critics(box):
    sac = make_sac(box, tau=0.25)
    before = learnt(sac, "targets")
    sac.update(transition_batch(box=box), progress=0.0)
    critics = learnt(sac, "critics")
    for name, target in learnt(sac, "targets").items():
        torch.testing.assert_close(target, before[name] + 0.25 * (critics[name] - before[name]))


def test_learns_actions_that_are_single_numbers():
    number = {"0": SubstepSpaces(observation=SPACES["0"].observation, action=Box(-2, 2, (), np.float32))}
    sac = Sac(number, SPEC, SacSettings())
    batch = transition_batch()
    metrics = sac.update(with_columns(batch, action=torch.linspace(-2, 2, B)[None]), progress=0.0)
    assert all(math.isfinite(metric) for metric in metrics.values())
    assert sac.policy.parameters_of({"": batch.substeps["0"].observation[""][0]}).shape == (B, 2)


def test_rejects_other_spaces_heads_and_checkpoints(tmp_path: Path):
    make_sac(True).save(tmp_path)
    with pytest.raises(ConfigurationError, match="Resume with the spaces"):
        make_sac(False).load(tmp_path)
    state = make_sac(True).policy_state()
    for settings, message in (
        ({"n_critics": 3}, "n_critics 2; expected 3, as in this run; set --sac.n-critics to that value, or give"),
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


def test_rejects_more_critics_of_the_target_than_there_are():
    with pytest.raises(ValidationError, match="target_critics is 3 of n_critics 2; expected at most that number"):
        SacSettings(target_critics=3)
    assert SacSettings(n_critics=1).n_target_critics == 1
