"""Two substeps that learn side by side behind one policy."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.independent_learners import IndependentLearners
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from tests.batches import make_batch, with_columns
from tests.every_algorithm import make_algorithm, make_learners

SEEN = Box(-np.inf, np.inf, (3,), np.float32)
SPACES: EnvironmentSpaces = {
    "scout": SubstepSpaces(observation=SEEN, action=Discrete(2), n_agents=3),
    "base": SubstepSpaces(observation=SEEN, action=Discrete(2)),
}
MOVING: EnvironmentSpaces = {
    "scout": SubstepSpaces(observation=SEEN, action=Box(-1, 1, (2,), np.float32)),
    "base": SubstepSpaces(observation=SEEN, action=Box(-1, 1, (1,), np.float32)),
}
SPEC = PolicySpec(hidden_sizes=(8,))
KINDS = {
    "impala": ("impala", {}),
    "sac": ("sac", {}),
    "redq": ("sac", {"n_critics": 3, "critic_layer_norm": True, "policy_update_interval": 2}),
    "dqn": ("dqn", {"epsilon": 0.4, "epsilon_end": 0.1}),
}
EACH_KIND = pytest.mark.parametrize("kind", list(KINDS))


def make(
    kind: str, spaces: EnvironmentSpaces = SPACES, *, seed: int = 0, spec: PolicySpec = SPEC
) -> IndependentLearners:
    name, settings = KINDS[kind]
    return make_learners(name, spaces, spec, seed=seed, **settings)


def batch_of(key: str, *, n_steps: int = 1, seed: int = 0) -> Batch:
    batch = make_batch(n_steps=n_steps, n_envs=6, seed=seed)
    return dataclasses.replace(batch, substeps={key: batch.substeps["0"]})


@EACH_KIND
def test_policy_has_all_substeps_and_actors_can_load_it(kind: str):
    algorithm = make(kind)
    state = algorithm.policy_state()
    twin = TorchPolicy(SPACES, algorithm.policy.spec)
    if kind in ("sac", "redq"):
        twin.set_uniform_exploration(False)
    assert list(state) == list(twin.state_dict()) == list(algorithm.policy.state_arrays())
    for name, array in algorithm.policy.state_arrays().items():
        np.testing.assert_array_equal(state[name], array)
    policy = make_policy(SPACES, algorithm.policy.spec, seed=0)
    policy.load(1, state)
    for key in SPACES:
        action, _ = policy.act({"": np.zeros((4, 3), np.float32)}, substep_key=key)
        assert action.shape == (4,)


def test_policy_state_has_standard_deviations():
    algorithm = make("impala", MOVING)
    assert {"log_std.scout", "log_std.base"} <= algorithm.policy_state().keys()
    batch = batch_of("base", n_steps=3)
    before = algorithm.policy_state()
    algorithm.update(with_columns(batch, action=torch.rand(3, 6, 1)), progress=0.0)
    after = algorithm.policy_state()
    assert (after["log_std.base"] != before["log_std.base"]).all()
    assert (after["log_std.scout"] == before["log_std.scout"]).all()


@EACH_KIND
def test_update_equals_that_of_the_substeps_own_learner_and_changes_no_other(kind: str):
    algorithm = make(kind)
    name, settings = KINDS[kind]
    seed = int(np.random.SeedSequence(0).spawn(2)[1].generate_state(1)[0])
    twin = make_algorithm(name, {"base": SPACES["base"]}, SPEC, seed=seed, **settings)
    before = algorithm.policy_state()
    metrics = algorithm.update(batch_of("base"), progress=0.5)
    expected = twin.update(batch_of("base"), progress=0.5)
    assert {name: float(value) for name, value in metrics.items()} == {
        f"base/{name}": float(value) for name, value in expected.items()
    }
    for name, array in algorithm.policy_state().items():
        if name.startswith("networks.scout"):
            np.testing.assert_array_equal(array, before[name])
        else:
            np.testing.assert_array_equal(array, twin.policy_state()[name])
    assert any((algorithm.policy_state()[name] != before[name]).any() for name in before)


def test_metrics_and_priorities_are_those_of_the_last_batch():
    algorithm = make("dqn")
    assert algorithm.priorities is None
    first = algorithm.update(batch_of("scout"), progress=0.0)
    scouts = algorithm.priorities
    second = algorithm.update(batch_of("base", seed=1), progress=0.0)
    assert {name.split("/")[0] for name in first} == {"scout"}
    assert {name.split("/")[0] for name in second} == {"base"}
    assert algorithm.n_updates == 2
    assert scouts is not None
    assert algorithm.priorities is not scouts


def test_exploration_is_shared_by_all_substeps():
    algorithm = make("dqn")
    algorithm.policy.set_uniform_exploration(True)
    rates = algorithm.policy_state()["exploration.epsilons"].copy()
    assert algorithm.policy_state()["exploration.uniform"] == 1
    algorithm.update(batch_of("scout"), progress=1.0)
    assert (algorithm.policy_state()["exploration.epsilons"] < rates).all()
    assert algorithm.policy_state()["exploration.uniform"] == 1
    algorithm.policy.set_uniform_exploration(False)
    assert algorithm.policy_state()["exploration.uniform"] == 0


def test_rejects_checkpoint_of_other_substeps_or_of_one_learner(tmp_path: Path):
    make("impala").save(tmp_path / "several")
    with pytest.raises(
        ConfigurationError, match=r"for the substeps \['scout', 'base'\]; expected .* for \['base', 'x'\]"
    ):
        make("impala", {"base": SPACES["base"], "x": SPACES["scout"]}).load(tmp_path / "several")
    make_algorithm("impala", {"base": SPACES["base"]}, SPEC).save(tmp_path / "one")
    with pytest.raises(ConfigurationError, match="was written by 'impala'"):
        make("impala").load(tmp_path / "one")
    with pytest.raises(ConfigurationError, match="'independent learners'"):
        make_algorithm("impala", {"base": SPACES["base"]}, SPEC).load(tmp_path / "several")


@pytest.mark.parametrize("key", ["..", "a.b", "type", "train", "keys"])
def test_rejects_keys_that_cannot_name_a_network(key: str):
    with pytest.raises(ConfigurationError, match=f"the substep key '{key}' cannot name a network"):
        make("impala", {key: SPACES["base"], "b": SPACES["base"]})


def test_rejects_batches_of_other_substeps():
    algorithm, batch = make("impala"), batch_of("base")
    with pytest.raises(ConfigurationError, match=r"substeps \['x'\]; expected exactly one of \['scout', 'base'\]"):
        algorithm.update(batch_of("x"), progress=0.0)
    both = dataclasses.replace(batch, substeps=dict.fromkeys(SPACES, batch.substeps["base"]))
    with pytest.raises(ConfigurationError, match=r"substeps \['base', 'scout'\]; expected exactly one"):
        algorithm.update(both, progress=0.0)


def test_rejects_substeps_with_different_heads():
    spaces = {"scout": SPACES["scout"], "arm": MOVING["base"]}
    with pytest.raises(ConfigurationError, match="'scout': 'default', 'arm': 'squashed_gaussian'"):
        make("sac", spaces)
    assert make("impala", spaces).policy.spec.head == "default"
    assert make("sac", MOVING).policy.spec.head == "squashed_gaussian"
