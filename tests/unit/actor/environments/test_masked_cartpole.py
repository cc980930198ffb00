import gymnasium
import numpy as np

from rollcast.actor.environments.masked_cartpole import make


def test_shows_position_and_angle_of_the_same_episodes():
    masked, whole = make(), gymnasium.make("CartPole-v1")
    one, other = masked.reset(seed=3)[0], whole.reset(seed=3)[0]
    for action in (0, 1, 1):
        np.testing.assert_array_equal(one, other[[0, 2]])
        one, other = masked.step(action)[0], whole.step(action)[0]
    assert masked.observation_space.contains(one)
    assert masked.spec.reward_threshold == 475.0
