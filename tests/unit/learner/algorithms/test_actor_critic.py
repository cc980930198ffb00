"""Tests that every actor-critic has to pass."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.actor_critics import (
    IMAGES,
    SPEC,
    ActorCritic,
    bools,
    make_appo,
    make_impala,
    make_ppo,
    parameters_of,
)
from tests.batches import BOX_SPACES, SPACES, make_batch, with_columns
from tests.every_algorithm import CASES, make_algorithm

Maker = Callable[..., ActorCritic]
IDS = ["impala", "ppo", "appo"]
every_actor_critic = pytest.mark.parametrize("make", [make_impala, make_ppo, make_appo], ids=IDS)
every_kind = pytest.mark.parametrize("kind", IDS)


@every_kind
@pytest.mark.parametrize("std", [0.14, 1.0, 7.0])
def test_actions_of_a_box_begin_with_the_deviation_that_was_set(kind: str, std: float):
    made = make_algorithm(kind, BOX_SPACES, SPEC, initial_std=std)
    arrays = {name: array for name, array in made.policy_state().items() if name.startswith("log_std.")}
    assert len(arrays) == 1
    for array in arrays.values():
        np.testing.assert_allclose(np.exp(array), [std, std], rtol=1e-6)


@every_actor_critic
def test_schedules_follow_progress(make: Maker):
    algorithm = make(learning_rate=0.5, learning_rate_schedule="linear", entropy_cost=0.2, entropy_cost_end=0.1)
    metrics = algorithm.update(make_batch(), progress=0.5)
    assert metrics["learning_rate"] == pytest.approx(0.2625)
    assert metrics["entropy_cost"] == pytest.approx(0.15)
    before = parameters_of(algorithm)
    assert algorithm.update(make_batch(), progress=1.0)["learning_rate"] == pytest.approx(0.025)
    assert not torch.equal(before, parameters_of(algorithm)), "a run that is resumed after its planned end learns on"


OVERRIDDEN = bools(5, 4, (0, 1), (2, 0), (2, 1), (4, 3))


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "as they are"])
@every_actor_critic
def test_nothing_is_learnt_from_actions_that_no_policy_chose(make: Maker, normalize: bool):
    one, other, unmarked = (make(normalize_advantages=normalize, normalize_rewards=False) for _ in range(3))
    batch = make_batch(overridden=OVERRIDDEN)
    columns = batch.substeps[FLAT_SUBSTEP]
    changed = with_columns(
        dataclasses.replace(batch, reward=torch.where(OVERRIDDEN, -1e6, batch.reward)),
        action=torch.where(OVERRIDDEN, 1 - columns.action, columns.action),
        log_prob=torch.where(OVERRIDDEN, -1e4, columns.log_prob),
    )
    metrics, others = one.update(batch, progress=0.0), other.update(changed, progress=0.0)
    assert torch.equal(parameters_of(one), parameters_of(other))
    assert all(float(others[name]) == float(value) for name, value in metrics.items())
    unmarked.update(dataclasses.replace(batch, overridden=None), progress=0.0)
    assert not torch.equal(parameters_of(one), parameters_of(unmarked))


@every_actor_critic
def test_a_batch_without_an_action_of_the_policy_leaves_its_numbers_finite(make: Maker):
    algorithm = make(normalize_advantages=True)
    before = parameters_of(algorithm)
    algorithm.update(make_batch(overridden=torch.ones(5, 4, dtype=torch.bool)), progress=0.0)
    torch.testing.assert_close(parameters_of(algorithm), before)


@every_kind
@pytest.mark.parametrize(
    ("spaces", "spec"),
    [
        (SPACES, SPEC),
        (IMAGES, PolicySpec(network="mlp")),
        (IMAGES, PolicySpec(recurrence="gru")),
        (SPACES, PolicySpec(network="tests.networks:make_linear")),
    ],
    ids=["vector", "mlp", "memory", "own"],
)
def test_a_torso_to_share_is_that_of_images_without_a_memory(kind: str, spaces, spec):
    with pytest.raises(ConfigurationError, match=r"share_torso: the network is .*; expected a built-in network of im"):
        make_algorithm(kind, spaces, spec, share_torso=True)


@pytest.mark.parametrize("name", ["impala: images", "ppo: images"])
def test_a_critic_of_another_torso_is_no_beginning(name: str, tmp_path: Path):
    shared = CASES[name].make("cpu")
    shared.save(tmp_path)
    other = dataclasses.replace(CASES[name], settings={}).make("cpu")
    with pytest.raises(ConfigurationError, match="was learnt with share_torso True; expected False"):
        other.begin_with(shared.policy_state(), tmp_path)


@every_kind
def test_rejects_checkpoint_that_does_not_fit(kind: str, tmp_path: Path):
    def of(*hidden_sizes: int) -> ActorCritic:
        return make_algorithm(kind, SPACES, PolicySpec(hidden_sizes=hidden_sizes))

    with pytest.raises(ConfigurationError, match=r"not a checkpoint: algorithm.safetensors, algorithm.json missing"):
        of(16, 16).load(tmp_path)
    of(16, 16).save(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has shape \[16, 3\]; expected \[32, 3\]"):
        of(32, 16).load(tmp_path)
    with pytest.raises(ConfigurationError, match="Resume with the spaces, the network"):
        of(16, 16, 16).load(tmp_path)
    (tmp_path / "algorithm.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        of(16, 16).load(tmp_path)


@every_kind
def test_rejects_several_substeps_and_batches_of_other_substeps(kind: str):
    spaces = {"red": SPACES[FLAT_SUBSTEP], "blue": SPACES[FLAT_SUBSTEP]}
    with pytest.raises(
        ConfigurationError, match=rf"has 2 substeps \['blue', 'red'\]; {kind.upper()} supports exactly 1"
    ):
        make_algorithm(kind, spaces, SPEC)
    of_red = make_algorithm(kind, {"red": SPACES[FLAT_SUBSTEP]}, SPEC)
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        of_red.update(make_batch(), progress=0.0)
