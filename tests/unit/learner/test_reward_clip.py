import math

import pytest
import torch

from rollcast.learner.reward_clip import clip_rewards


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ("none", [-2.0, 0.5, 3.0]),
        ("unit", [-1.0, 0.5, 1.0]),
        ("soft_asymmetric", [0.3 * math.tanh(-2.0), 5 * math.tanh(0.5), 5 * math.tanh(3.0)]),
    ],
)
def test_rewards_are_clipped_as_in_the_papers(clip: str, expected: list[float]):
    reward = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(clip_rewards(reward, clip), torch.tensor(expected))
    assert reward.tolist() == [-2.0, 0.5, 3.0], "the batch is not changed"
