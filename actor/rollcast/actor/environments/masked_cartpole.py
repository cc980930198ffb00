"""CartPole-v1 without velocities: the smallest task that needs a recurrent policy or a frame stack.

rollcast train --env-id rollcast.actor.environments.masked_cartpole:make --algorithm ppo --recurrence lstm
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

# Position of the cart and angle of the pole, of what CartPole observes.
_SHOWN = (0, 2)


class MaskedCartPole(gymnasium.ObservationWrapper[NDArray[np.float32], int, NDArray[np.float32]]):
    """CartPole whose observation has the position and the angle, float32 `[2]`, and no velocities."""

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
        """Returns what is shown of an observation."""
        return observation[list(_SHOWN)]


def make(**env_kwargs: Any) -> MaskedCartPole:  # noqa: ANN401 - the user's --env-kwargs
    """Makes CartPole-v1 without velocities; a factory for `--env-id`. Its threshold is that of CartPole-v1, 475.

    Args:
        env_kwargs: Keyword arguments of CartPole-v1, such as `render_mode`.
    """
    return MaskedCartPole(gymnasium.make("CartPole-v1", **env_kwargs))
