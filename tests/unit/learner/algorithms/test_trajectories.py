"""The parts of a batch that algorithms learn from: recurrent states, moments, transitions."""

import pytest
import torch

from rollcast.learner.algorithms.trajectories import (
    explained_variance,
    normalized,
    sequence_starts,
    states_before_ends,
    weighted_variance,
)
from rollcast.learner.algorithms.transitions import transitions_of
from rollcast.services.errors import ConfigurationError
from tests.batches import B, make_batch, transition_batch

T, F = True, False
WEIGHT = torch.tensor([0.5, 0.25, 0.0, 0.25])


def test_moments_ignore_rows_without_weight():
    quantity = torch.tensor([1.0, 3.0, 1e6, 5.0])
    torch.testing.assert_close(weighted_variance(quantity, WEIGHT), torch.tensor(2.75))
    scaled = normalized(quantity, WEIGHT)
    torch.testing.assert_close(torch.dot(scaled, WEIGHT), torch.tensor(0.0), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(weighted_variance(scaled, WEIGHT), torch.tensor(1.0))


def test_explained_variance_is_one_for_right_values_and_zero_for_a_constant():
    target = torch.tensor([1.0, 3.0, 4.0, 5.0])
    assert float(explained_variance(target, target, WEIGHT)) == 1.0
    assert float(explained_variance(torch.full((4,), 9.0), target, WEIGHT)) == pytest.approx(0.0, abs=1e-6)


# (valid, ended) of the rows of a trajectory; what is expected: "-" goes on, "0" begins an episode, "i" is held.
@pytest.mark.parametrize(
    ("valid", "ended", "expected"),
    [
        pytest.param([T, T, T, T], [F, F, F, F], "i---", id="nothing ends"),
        pytest.param([T, T, T, T], [F, T, F, T], "i-0-", id="reset in the same step"),
        pytest.param([T, T, T, T], [T, T, F, F], "i00-", id="an episode of one step"),
        pytest.param([T, T, F, T, T], [F, T, F, F, F], "i--0-", id="a reset row goes on with the old state"),
        pytest.param([F, T, T], [F, F, F], "ii-", id="the reset row of an episode of the rollout before"),
        pytest.param([T, F, F, T], [T, F, F, F], "i-00", id="two steps dropped, one after the other"),
        pytest.param([F, F, T, T], [F, F, T, F], "iii0", id="rows before the first of an agent"),
        pytest.param([F, F, F], [F, F, F], "iii", id="no transition"),
    ],
)
def test_state_starts_anew_where_an_episode_begins(valid: list[bool], ended: list[bool], expected: str):
    n_steps = len(valid)
    columns = {"valid": torch.tensor(valid)[:, None], "truncated": torch.tensor(ended)[:, None]}
    starts = sequence_starts(make_batch(n_steps=n_steps, n_envs=1, **columns))
    found = ["i" if held else "0" if begins else "-" for begins, held in zip(*starts, strict=True)]
    assert "".join(found) == expected


def test_last_and_final_observations_are_seen_with_the_state_after_their_row():
    batch = make_batch(final_index=torch.tensor([[2, 1], [4, 3]]), final_observation=torch.zeros(2, 3))
    states = torch.arange(20.0).view(5, 4, 1)
    assert states_before_ends(batch, states).flatten().tolist() == [16.0, 17.0, 18.0, 19.0, 9.0, 19.0]


def test_uses_discounts_and_weights_of_the_batch():
    discount, weights = torch.linspace(0.5, 1.0, B), torch.arange(1.0, B + 1)
    valid = torch.ones(1, B, dtype=torch.bool)
    valid[0, 2] = False
    before = weights.clone()
    batch = transition_batch(discount=discount, weights=weights, valid=valid)
    read = transitions_of(batch, "0", discount=0.9, reward_scale=1.0)
    torch.testing.assert_close(read.discount, discount * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(read.weight, weights * torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]) / B)
    assert torch.equal(weights, before)


def test_rejects_trajectories_and_other_substeps():
    with pytest.raises(ConfigurationError, match="trajectories of 5 steps; expected transitions"):
        transitions_of(make_batch(), "0", discount=0.9, reward_scale=1.0)
    with pytest.raises(ConfigurationError, match=r"holds the substeps \['0'\]; expected \['red'\]"):
        transitions_of(transition_batch(), "red", discount=0.9, reward_scale=1.0)
