"""The parts of a batch that actor-critics learn from: observations, the values that follow, shaped rewards, moments."""

import math

import pytest
import torch

from rollcast.learner.algorithms.trajectories import (
    explained_variance,
    normalized,
    observations_to_value,
    shaped_rewards,
    values_and_next_values,
    weighted_variance,
)
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import make_batch

WEIGHT = torch.tensor([0.5, 0.25, 0.0, 0.25])


def test_observations_come_row_by_row_then_the_last_then_the_final_ones():
    final = torch.tensor([[7.0, 8.0, 9.0]])
    batch = make_batch(final_index=torch.tensor([[2, 1]]), final_observation=final)
    columns = batch.substeps[FLAT_SUBSTEP]
    rows = observations_to_value(batch, columns)[""]
    assert rows.shape == (5 * 4 + 4 + 1, 3)
    assert torch.equal(rows[2 * 4 + 1], columns.observation[""][2, 1])
    assert torch.equal(rows[20:24], columns.last_observation[""])
    assert torch.equal(rows[24:], final)


def test_next_value_is_that_of_the_next_row_the_last_or_the_final_observation():
    batch = make_batch(final_index=torch.tensor([[2, 1], [4, 3]]), final_observation=torch.zeros(2, 3))
    v_t, v_tp1 = values_and_next_values(batch, torch.arange(26.0))
    assert torch.equal(v_t, torch.arange(20.0).view(5, 4))
    expected = torch.arange(4.0, 24.0).view(5, 4)
    expected[2, 1], expected[4, 3] = 24.0, 25.0
    assert torch.equal(v_tp1, expected)


@pytest.mark.parametrize(
    ("clip", "scale", "expected"),
    [
        ("none", 1.0, [-2.0, 0.5, 3.0]),
        ("none", 0.1, [-0.2, 0.05, 0.3]),
        ("unit", 2.0, [-2.0, 1.0, 2.0]),
        ("soft_asymmetric", 1.0, [0.3 * math.tanh(-2.0), 5 * math.tanh(0.5), 5 * math.tanh(3.0)]),
    ],
)
def test_rewards_are_clipped_then_scaled(clip: str, scale: float, expected: list[float]):
    reward = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(shaped_rewards(reward, clip, scale), torch.tensor(expected))
    assert reward.tolist() == [-2.0, 0.5, 3.0], "the batch is not changed"


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
