"""Algorithms of policies that normalise: what they see, and what enters the moments."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.independent_learners import IndependentLearners
from rollcast.learner.algorithms.observation_statistics import RolloutObserver, observe_batch
from rollcast.learner.algorithms.own_algorithm import make_own_algorithm
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.actor_critics import bools
from tests.batches import SPACES, make_batch, with_columns
from tests.delayed_copier import DelayedCopier
from tests.every_algorithm import CASES
from tests.rollouts import CARTPOLE_LIKE, make_rollout

MEAN, VARIANCE = np.array([100.0, -3.0, 0.0]), np.array([400.0, 0.01, 9.0])
OWN = "examples.own_algorithm:ActorCritic"


def make(name: str, *, normalizes: bool) -> Algorithm:
    if name == "own":
        spec = PolicySpec(hidden_sizes=(8,), normalize_observations=normalizes)
        return make_own_algorithm(OWN, SPACES, spec, {}, device=torch.device("cpu"), seed=1)
    case = CASES[name]
    return dataclasses.replace(case, spec=dataclasses.replace(case.spec, normalize_observations=normalizes)).make("cpu")


def with_observations(batch, change):
    """The batch with every observation changed."""
    (columns,) = batch.substeps.values()
    names = ("observation", "last_observation", "final_observation")
    changed = {name: {"": change(getattr(columns, name)[""])} for name in names}
    return with_columns(batch, **changed)


@pytest.mark.parametrize(
    "name",
    ["impala", "impala: memory", "ppo", "ppo: memory", "appo", "appo: memory", "own", "dqn", "r2d2", "sac: box"],
)
def test_an_update_is_that_of_observations_normalised_before(name):
    normalizing, plain = make(name, normalizes=True), make(name, normalizes=False)
    moments = normalizing.policy.normalization[FLAT_SUBSTEP]
    moments.mean.copy_(torch.from_numpy(MEAN))
    moments.variance.copy_(torch.from_numpy(VARIANCE))
    (batch,) = CASES["impala" if name == "own" else name].batches("cpu")
    raw = with_observations(batch, lambda x: x * torch.tensor([20.0, 0.1, 30.0]) + torch.tensor(MEAN).float())
    seen = with_observations(raw, lambda x: normalizing.policy.normalized({"": x})[""])
    for _ in range(2):
        metrics, expected = normalizing.update(raw, progress=0.0), plain.update(seen, progress=0.0)
        assert {key: float(value) for key, value in metrics.items()} == {
            key: float(value) for key, value in expected.items()
        }
    for key, array in plain.policy_state().items():
        np.testing.assert_array_equal(normalizing.policy_state()[key], array)
    assert moments.count == 0, "an update leaves the moments as they are"


def test_the_transitions_of_a_batch_enter_the_moments_and_nothing_else_does():
    policy = make("impala", normalizes=True).policy
    batch = make_batch(valid=~bools(5, 4, (0, 1), (3, 2)))
    for _ in range(2):
        observe_batch(policy, batch)
    state = policy.state_arrays()
    rows = batch.substeps[FLAT_SUBSTEP].observation[""][batch.valid].double().numpy()
    assert state["normalization.0.count"] == 2 * 18
    np.testing.assert_allclose(state["normalization.0.mean"], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state["normalization.0.variance"], rows.var(axis=0), rtol=1e-12)
    plain = make("impala", normalizes=False).policy
    before = plain.state_arrays()
    observe_batch(plain, batch)
    assert before.keys() == plain.state_arrays().keys()


def test_rollouts_enter_the_moments_through_the_copier_without_a_wait_for_the_device():
    spec = PolicySpec(hidden_sizes=(4,), normalize_observations=True)
    policy, copier = TorchPolicy(CARTPOLE_LIKE, spec), DelayedCopier()  # which refuses memory from which copies wait
    valid = np.array([[True, False], [True, True], [True, True]])
    rollouts = [make_rollout(sequence, valid=valid) for sequence in range(1, 4)]
    observe = RolloutObserver(policy, copier)
    for rollout in rollouts:
        observe(rollout)
    assert copier.n_sent == 3
    rows = np.concatenate([rollout.substeps[FLAT_SUBSTEP].observation[""][valid] for rollout in rollouts])
    state = policy.state_arrays()
    assert state["normalization.0.count"] == 15
    np.testing.assert_allclose(state["normalization.0.mean"], rows.mean(axis=0, dtype=np.float64), rtol=1e-12)


def test_float64_observations_of_rollouts_enter_the_moments_with_all_their_digits():
    """As float32, all of these are one of two numbers."""
    (substep,) = CARTPOLE_LIKE.values()
    observed = spaces.Box(-np.inf, np.inf, substep.observation.shape, np.float64)
    spec = PolicySpec(hidden_sizes=(4,), normalize_observations=True)
    policy = TorchPolicy({FLAT_SUBSTEP: dataclasses.replace(substep, observation=observed)}, spec)
    rollout = make_rollout(1)
    columns = rollout.substeps[FLAT_SUBSTEP]
    rows = 1e6 + 0.01 * columns.observation[""].astype(np.float64)
    substeps = {FLAT_SUBSTEP: dataclasses.replace(columns, observation={"": rows})}
    RolloutObserver(policy)(dataclasses.replace(rollout, substeps=substeps))
    expected = rows.reshape(-1, *observed.shape).var(axis=0)
    np.testing.assert_allclose(policy.state_arrays()["normalization.0.variance"], expected, rtol=1e-3)


def test_each_substep_has_its_own_moments():
    vector = spaces.Box(-1, 1, (3,), np.float32)
    substeps = {
        key: SubstepSpaces(observation=observation, action=spaces.Discrete(2))
        for key, observation in (("a", vector), ("b", vector), ("tiles", spaces.Discrete(3)))
    }
    spec = PolicySpec(hidden_sizes=(4,), normalize_observations=True)
    algorithm = IndependentLearners(substeps, lambda one, *, seed: Impala(one, spec, ImpalaSettings(), seed=seed))
    batch = make_batch()
    observe_batch(algorithm.policy, dataclasses.replace(batch, substeps={"b": batch.substeps[FLAT_SUBSTEP]}))
    state = algorithm.policy_state()
    assert [state[f"normalization.{key}.count"] for key in "ab"] == [0, 20]
    assert "normalization.tiles.mean" not in state


def test_an_own_policy_without_the_normalisation_that_was_asked_for_is_refused():
    spec = PolicySpec(normalize_observations=True)
    name = "tests.unit.learner.algorithms.own_algorithms:NormalizesNothing"
    with pytest.raises(ConfigurationError, match=r"\(False, 10.0\); expected \(True, 10.0\).*with the given spec"):
        make_own_algorithm(name, SPACES, spec, {}, device=torch.device("cpu"), seed=1)
