"""A batch without data: no algorithm makes a gradient of it that is anything but 0."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rollcast.learner.ranks.empty_batch import empty_batch
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.batches import B
from tests.every_algorithm import make_algorithm
from tests.rank_updates import CASES, N_ENVS, N_STEPS

IMAGES = Box(0, 255, (1, 36, 36), np.uint8)


def nothing_for(name: str, algorithm):
    if name in ("dqn", "sac", "sac_discrete"):
        return empty_batch(algorithm.policy, n_steps=1, batch_size=B, device="cpu", from_replay=True)
    return empty_batch(algorithm.policy, n_steps=N_STEPS, batch_size=N_ENVS, device="cpu")


@pytest.mark.parametrize("name", CASES)
def test_its_gradient_is_0(name: str):
    algorithm = CASES[name].make()
    gradients = []

    class Keeping(GradientReduction):
        def average(self, gradient, terms, count):
            gradients.append((gradient.clone(), float(count), [float(term) for term in terms]))
            return terms

    algorithm.join_ranks(Keeping())
    algorithm.update(nothing_for(name, algorithm), progress=0.0)
    assert gradients
    for gradient, count, terms in gradients:
        assert count == 0
        assert torch.equal(gradient, torch.zeros_like(gradient))
        assert all(np.isfinite(terms))


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_shapes_of_a_batch_with_data(name: str):
    case = CASES[name]
    algorithm = case.make()
    made, given = nothing_for(name, algorithm), case.batch(0)
    for field in ("reward", "terminated", "truncated", "valid"):
        assert getattr(made, field).shape == getattr(given, field).shape
        assert getattr(made, field).dtype == getattr(given, field).dtype
    mine, theirs = made.substeps["0"], given.substeps["0"]
    for field in dataclasses.fields(mine):
        own, other = getattr(mine, field.name), getattr(theirs, field.name)
        if isinstance(own, torch.Tensor):
            assert (own.shape, own.dtype) == (other.shape, other.dtype), field.name
    assert mine.observation[""].shape == theirs.observation[""].shape


@pytest.mark.parametrize("algorithm", ["impala", "dqn", "r2d2"])
def test_it_fits_stacks_of_frames_masks_and_spaces_of_every_kind(algorithm: str):
    observation = Dict(
        image=IMAGES,
        action_mask=Box(0, 1, (3,), np.int8),
        more=Tuple((Discrete(1, start=4), MultiDiscrete([2, 3], start=[5, 6]), MultiBinary(2))),
    )
    spaces = {"0": SubstepSpaces(observation=observation, action=Discrete(3, start=7))}
    spec = PolicySpec(hidden_sizes=(8,), frame_stack=2)
    if algorithm == "r2d2":
        spec = dataclasses.replace(spec, recurrence="gru", recurrent_size=4)
    learner = make_algorithm(algorithm, spaces, spec, **CASES[algorithm].settings)
    of_transitions = algorithm == "dqn"
    batch = empty_batch(
        learner.policy,
        n_steps=1 if of_transitions else 6,
        batch_size=3,
        device="cpu",
        from_replay=of_transitions,
        burn_in=2 if algorithm == "r2d2" else 0,
    )
    metrics = learner.update(batch, progress=0.0)
    assert all(np.isfinite(float(value)) for name, value in metrics.items() if name != "explained_variance")
