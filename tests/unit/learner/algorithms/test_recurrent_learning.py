"""Recurrent policies in algorithms: some learn them, the others refuse them, and minibatches are whole trajectories."""

import functools

import numpy as np
import pytest
import torch

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.minibatches import Sequences, Steps, items_in_minibatch
from rollcast.learner.algorithms.own_algorithm import make_own_algorithm
from rollcast.learner.algorithms.trajectories import sequence_starts
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests import batches
from tests.actor_critics import ActorCritic, bools
from tests.batches import SPACES
from tests.every_algorithm import make_algorithm
from tests.learnt import learnt

LSTM = PolicySpec(hidden_sizes=(16,), recurrence="lstm", recurrent_size=6)
OWN = "tests.unit.learner.algorithms.own_algorithms"


recurrent_batch = functools.partial(batches.recurrent_batch, LSTM.state_size)


def made(kind: str, **settings: object) -> ActorCritic:
    passes = {} if kind == "impala" else {"minibatch_steps": 10, "n_epochs": 2}
    return make_algorithm(kind, SPACES, LSTM, **{**passes, **settings})


@pytest.mark.parametrize("kind", ["impala", "ppo", "appo"])
def test_update_moves_every_parameter_of_policy_and_critic(kind: str):
    algorithm = made(kind)
    before = {name: array.copy() for name, array in algorithm.policy.state_arrays().items()}
    critic = learnt(algorithm, "critic")
    for _ in range(2):  # in the first, the small last layer lets little through
        metrics = algorithm.update(recurrent_batch(terminated=bools(5, 4, (2, 1))), progress=0.0)
    assert all(np.isfinite(float(value)) for value in metrics.values())
    for name, array in algorithm.policy.state_arrays().items():
        assert (array != before[name]).any(), name
    assert all((array != critic[name]).any() for name, array in learnt(algorithm, "critic").items())


def test_minibatches_are_whole_trajectories():
    batch = recurrent_batch()
    rows = torch.arange(20)
    sequences = Sequences(batch.substeps[FLAT_SUBSTEP].initial_state, sequence_starts(batch))
    steps = Steps({"": rows}, rows, rows, rows, rows, rows, rows, sequences)
    assert steps.n_items == 4
    taken = steps.at(torch.tensor([2, 0]))
    assert taken.sequences is not None
    assert taken.observation[""].tolist() == [row + b for row in range(0, 20, 4) for b in (2, 0)]
    assert all(torch.equal(column, taken.observation[""]) for column in taken[1:7])
    assert torch.equal(taken.sequences.initial_state, sequences.initial_state[[2, 0]])
    assert taken.sequences.starts.held.tolist() == [[True, True]] + [[False, False]] * 4


@pytest.mark.parametrize("kind", ["ppo", "appo"])
def test_a_minibatch_has_as_many_trajectories_as_make_its_steps(kind: str):
    for minibatch_steps, n_minibatches in ((10, 2), (15, 2), (20, 1)):
        algorithm = made(kind, minibatch_steps=minibatch_steps)
        algorithm.update(recurrent_batch(), progress=0.0)
        assert learnt(algorithm, "optimizer")["state.0.step"] == 2 * n_minibatches, "of 4 trajectories of 5 steps"


@pytest.mark.parametrize("kind", ["ppo", "appo"])
def test_refuses_minibatches_that_would_cut_trajectories(kind: str):
    message = rf"--{kind}.minibatch-steps: 12 .*expected a multiple of --n-rollout-steps, 5"
    with pytest.raises(ConfigurationError, match=message):
        made(kind, minibatch_steps=12).update(recurrent_batch(), progress=0.0)
    assert items_in_minibatch(128, 32, algorithm=kind) == 4


@pytest.mark.parametrize(
    ("spec", "option", "expected"),
    [
        (LSTM, "--recurrence lstm", r"impala, ppo, appo or r2d2 \(DQN over sequences\), or"),
        (PolicySpec(hidden_sizes=(16,), frame_stack=4), "--frame-stack 4", "impala, ppo, appo, dqn, r2d2 or sac, or"),
    ],
)
def test_algorithms_that_cannot_learn_such_policies_refuse_them(spec: PolicySpec, option: str, expected: str):
    def own() -> Algorithm:
        return make_own_algorithm(f"{OWN}:SaysNothing", SPACES, spec, {}, device=torch.device("cpu"), seed=0)

    off_policy = [functools.partial(make_algorithm, kind, SPACES, spec) for kind in ("sac", "dqn")]
    for make in (own, *(off_policy if spec is LSTM else ())):
        with pytest.raises(ConfigurationError, match=rf"{option} with --algorithm .*expected {expected}"):
            make()
