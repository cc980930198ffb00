"""CartPole-v1 without velocities: the smallest task that needs a recurrent policy or a frame stack.

rollcast train --env-id rollcast.actor.environments.masked_cartpole:make --algorithm ppo --recurrence lstm
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

# The indices of the cart's position and the pole's angle in CartPole's observation.
_SHOWN = (0, 2)


class MaskedCartPole(gymnasium.ObservationWrapper[NDArray[np.float32], int, NDArray[np.float32]]):
    """CartPole that observes only the cart's position and the pole's angle, float32 `[2]`."""

    def __init__(self, env: gymnasium.Env[NDArray[np.float32], int]) -> None:
        """Wraps an environment.

        Args:
            env: CartPole.
        """
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        self.observation_space = Box(space.low[list(_SHOWN)], space.high[list(_SHOWN)], dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the position and the angle of an observation."""
        return observation[list(_SHOWN)]


def make(**env_kwargs: Any) -> MaskedCartPole:  # noqa: ANN401 - the user's --env-kwargs
    """Makes CartPole-v1 without velocities; a factory for `--env-id`. The task is solved at 475, like CartPole-v1.

    Args:
        env_kwargs: Keyword arguments of CartPole-v1, such as `render_mode`.
    """
    return MaskedCartPole(gymnasium.make("CartPole-v1", **env_kwargs))
