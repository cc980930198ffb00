"""Tests that every actor-critic has to pass."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from pydantic import ValidationError

from rollcast.learner.algorithms.actor_critic import ActorCritic
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.clipped_surrogate_settings import ClippedSurrogateSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.actor_critics import (
    SPEC,
    log_prob_of,
    make_appo,
    make_impala,
    make_ppo,
    on_policy_batch,
    parameters_of,
)
from tests.batches import BOX_SPACES, SPACES, make_batch

Maker = Callable[..., ActorCritic]
IMAGE_SPACES = {
    FLAT_SUBSTEP: SubstepSpaces(
        observation=Dict({"image": Box(0, 255, (36, 36, 1), np.uint8), "vector": Box(-np.inf, np.inf, (3,))}),
        action=Discrete(2),
    )
}
IDS = ["impala", "ppo", "appo"]
every_actor_critic = pytest.mark.parametrize("make", [make_impala, make_ppo, make_appo], ids=IDS)
every_class = pytest.mark.parametrize(
    ("algorithm", "settings"), [(Impala, ImpalaSettings), (Ppo, PpoSettings), (Appo, AppoSettings)], ids=IDS
)


@every_actor_critic
def test_update_returns_finite_metrics_without_gradients(make: Maker):
    metrics = make().update(make_batch(), progress=0.0)
    assert metrics.keys() >= {"policy_loss", "value_loss", "entropy", "policy_grad_norm", "learning_rate"}
    assert all(isinstance(value, float) or (value.dim() == 0 and not value.requires_grad) for value in metrics.values())
    assert np.isfinite([float(value) for value in metrics.values()]).all()


@pytest.mark.parametrize(
    ("make", "n_updates"), [(make_impala, 30), (make_ppo, 3), (partial(make_appo, n_epochs=10), 3)], ids=IDS
)
def test_rewarded_actions_become_likelier(make: Maker, n_updates: int):
    algorithm = make(learning_rate=1e-2, discount=0.0, entropy_cost=0.0)
    action = make_batch().substeps[FLAT_SUBSTEP].action
    batch = on_policy_batch(algorithm, reward=action.float())
    for _ in range(n_updates):
        algorithm.update(batch, progress=0.0)
    gain = log_prob_of(algorithm, batch) - batch.substeps[FLAT_SUBSTEP].log_prob
    assert gain[action == 1].min() > 0.05
    assert gain[action == 0].max() < -0.05


@every_class
@pytest.mark.parametrize("std", [0.14, 1.0, 7.0])
def test_actions_of_a_box_begin_with_the_deviation_that_was_set(algorithm: type, settings: type, std: float):
    made = algorithm(BOX_SPACES, SPEC, settings(initial_std=std), seed=0)
    arrays = {name: array for name, array in made.policy_state().items() if name.startswith("log_std.")}
    assert len(arrays) == 1
    for array in arrays.values():
        np.testing.assert_allclose(np.exp(array), [std, std], rtol=1e-6)


@every_actor_critic
def test_schedules_follow_progress(make: Maker):
    algorithm = make(learning_rate=0.5, learning_rate_schedule="linear", entropy_cost=0.2, entropy_cost_end=0.1)
    metrics = algorithm.update(make_batch(), progress=0.5)
    assert metrics["learning_rate"] == pytest.approx(0.25)
    assert metrics["entropy_cost"] == pytest.approx(0.15)
    before = parameters_of(algorithm)
    assert algorithm.update(make_batch(), progress=1.0)["learning_rate"] == 0.0
    assert torch.equal(before, parameters_of(algorithm))


@every_actor_critic
def test_the_policy_state_is_a_snapshot_of_the_policy_alone(make: Maker):
    algorithm = make()
    state = algorithm.policy_state()
    assert state.keys() == algorithm.policy.state_dict().keys()
    before = {name: array.copy() for name, array in state.items()}
    algorithm.update(make_batch(), progress=0.0)
    assert all(np.array_equal(before[name], array) for name, array in state.items())
    assert any(not np.array_equal(before[name], array) for name, array in algorithm.policy_state().items())


@every_actor_critic
def test_the_seed_decides_the_networks_and_leaves_the_global_generator_alone(make: Maker):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    vectors = [parameters_of(make(seed)) for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_impala, {"optimizer": "adam"}),
        (make_impala, {"optimizer": "rmsprop", "rmsprop_momentum": 0.9}),
        (make_ppo, {}),
        (make_appo, {}),
    ],
)
def test_updates_after_load_are_bit_identical(make: Maker, settings: dict[str, object], tmp_path: Path):
    algorithm = make(**settings)
    for seed in range(3):
        algorithm.update(make_batch(seed=seed), progress=0.1)
    algorithm.save(tmp_path / "checkpoint")
    restored = make(seed=99, **settings)
    restored.load(tmp_path / "checkpoint")
    assert restored.n_updates == 3
    for seed in range(3, 6):
        algorithm.update(make_batch(seed=seed), progress=0.1)
        restored.update(make_batch(seed=seed), progress=0.1)
        assert torch.equal(parameters_of(algorithm), parameters_of(restored))
    state = restored.policy_state()
    assert all(np.array_equal(array, state[name]) for name, array in algorithm.policy_state().items())


def of_images(algorithm: type, settings: type, *, seed: int = 0, **given: object) -> ActorCritic:
    """Returns an actor-critic that sees an image and a vector, so that there are hidden layers after the torso."""
    own = settings(**{**_small(settings), "max_grad_norm": 1e9, **given})
    return algorithm(IMAGE_SPACES, SPEC, own, seed=seed)


def batch_of_images(seed: int = 0) -> Batch:
    batch, rng = make_batch(seed=seed), torch.Generator().manual_seed(seed)
    columns = batch.substeps[FLAT_SUBSTEP]

    def seen(leaves: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shape = (*leaves[""].shape[:-1], 36, 36, 1)
        return {"image": torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng), "vector": leaves[""]}

    observed = {name: seen(getattr(columns, name)) for name in ("observation", "last_observation", "final_observation")}
    return dataclasses.replace(batch, substeps={FLAT_SUBSTEP: dataclasses.replace(columns, **observed)})


@every_class
def test_one_torso_gives_policy_and_critic_what_two_passes_give(algorithm: type, settings: type):
    shared = of_images(algorithm, settings, share_torso=True)
    (network,) = shared.policy.networks.values()
    rows = {path: leaf.flatten(0, 1) for path, leaf in batch_of_images().substeps[FLAT_SUBSTEP].observation.items()}
    parameters, values = shared._of_observations(rows, 12)
    assert (parameters.shape, values.shape) == ((12, 2), (20,))
    twin = shared.policy.parameters_of({path: leaf[:12] for path, leaf in rows.items()})
    torch.testing.assert_close(parameters, twin)
    value_twin = shared._critic(network.features(rows))
    torch.testing.assert_close(values, value_twin)
    # Both reach the torso; of the critic's layers the policy knows nothing.
    weights = list(network.images.parameters())
    (parameters.square().sum() + values.square().sum()).backward()
    together = [weight.grad.clone() for weight in weights]
    for of_one in (twin.square().sum(), value_twin.square().sum()):
        gradients = torch.autograd.grad(of_one, weights)
        assert all(gradient.abs().max() > 0 for gradient in gradients)
        together = [sum_ - gradient for sum_, gradient in zip(together, gradients, strict=True)]
    for rest in together:
        torch.testing.assert_close(rest, torch.zeros_like(rest), atol=1e-4, rtol=0.0)
    assert shared.policy_state().keys() == of_images(algorithm, settings).policy_state().keys()


@every_class
def test_a_torso_for_two_goes_on_after_load_bit_by_bit(algorithm: type, settings: type, tmp_path: Path):
    one = of_images(algorithm, settings, share_torso=True)
    before = parameters_of(one)
    one.update(batch_of_images(), progress=0.1)
    assert not torch.equal(before, parameters_of(one))
    one.save(tmp_path)
    other = of_images(algorithm, settings, share_torso=True, seed=9)
    other.load(tmp_path)
    for each in (one, other):
        each.update(batch_of_images(seed=1), progress=0.1)
    assert torch.equal(parameters_of(one), parameters_of(other))
    with pytest.raises(ConfigurationError, match="was learnt with share_torso True; expected False"):
        of_images(algorithm, settings).begin_with(one.policy_state(), tmp_path)


@every_class
@pytest.mark.parametrize(
    ("spaces", "spec"),
    [
        (SPACES, SPEC),
        (IMAGE_SPACES, PolicySpec(network="mlp")),
        (IMAGE_SPACES, PolicySpec(recurrence="gru")),
        (SPACES, PolicySpec(network="tests.networks:make_linear")),
    ],
    ids=["vector", "mlp", "memory", "own"],
)
def test_a_torso_to_share_is_that_of_images_without_a_memory(algorithm: type, settings: type, spaces, spec):
    with pytest.raises(ConfigurationError, match=r"share_torso: the network is .*; expected a built-in network of im"):
        algorithm(spaces, spec, settings(share_torso=True), seed=0)


@every_actor_critic
def test_rejects_checkpoint_that_does_not_fit(make: Maker, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"not a checkpoint: algorithm.safetensors, algorithm.json missing"):
        make().load(tmp_path)
    algorithm = make()
    algorithm.save(tmp_path)
    wider = type(algorithm)(SPACES, PolicySpec(hidden_sizes=(32, 16)), algorithm._settings)
    with pytest.raises(ConfigurationError, match=r"has shape \[16, 3\]; expected \[32, 3\]"):
        wider.load(tmp_path)
    deeper = type(algorithm)(SPACES, PolicySpec(hidden_sizes=(16, 16, 16)), algorithm._settings)
    with pytest.raises(ConfigurationError, match="Resume with the spaces, the network"):
        deeper.load(tmp_path)
    (tmp_path / "algorithm.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        make().load(tmp_path)


@every_actor_critic
def test_divergence_is_reported_and_never_sent(make: Maker, tmp_path: Path):
    algorithm = make()
    before = parameters_of(algorithm)
    with pytest.raises(RollcastError, match=r"diverged within 1 updates: policy loss, value loss.*not finite"):
        algorithm.update(make_batch(reward=torch.full((5, 4), float("inf"))), progress=0.0)
    assert torch.equal(before, parameters_of(algorithm))
    with pytest.raises(RollcastError, match="diverged"):
        algorithm.policy_state()
    with pytest.raises(RollcastError, match="diverged"):
        algorithm.save(tmp_path)


@every_class
def test_rejects_several_substeps_and_batches_of_other_substeps(algorithm, settings):
    spaces = {"red": SPACES[FLAT_SUBSTEP], "blue": SPACES[FLAT_SUBSTEP]}
    name = algorithm.name.upper()
    with pytest.raises(ConfigurationError, match=rf"has 2 substeps \['blue', 'red'\]; {name} supports exactly 1"):
        algorithm(spaces, SPEC, settings())
    of_red = algorithm({"red": SPACES[FLAT_SUBSTEP]}, SPEC, settings(**_small(settings)))
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        of_red.update(make_batch(), progress=0.0)


def _small(settings: type) -> dict[str, int]:
    return {"minibatch_steps": 10} if issubclass(settings, ClippedSurrogateSettings) else {}


@every_class
def test_every_setting_is_explained_and_fixed(algorithm, settings):
    assert all(field.description for field in settings.model_fields.values())
    with pytest.raises(ValidationError, match="frozen"):
        settings().discount = 0.5


@every_class
@pytest.mark.parametrize(("field", "value"), [("discount", 1.1), ("learning_rate", 0.0), ("gamma", 0.9)])
def test_rejects_settings_out_of_range(algorithm, settings, field, value):
    with pytest.raises(ValidationError, match=field):
        settings(**{field: value})
