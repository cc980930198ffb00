"""Your own environment, and how to train on it.

    rollcast train --env-id examples.own_environment:make --stop-return 0.95
    rollcast train --env-id examples.own_environment:make --env-kwargs '{"columns": 7}' --stop-return 0.95

`python examples/own_environment.py` does the same as the first command. You can name any callable that returns a
`gymnasium.Env`. It must be importable by its name, because every process that acts makes its own environments.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from rollcast.learner import main


class Catch(gymnasium.Env[NDArray[np.int64], np.int64]):
    """A ball falls down a column; a paddle at the bottom moves left or right. The reward is 1 for a catch, else -1.

    Observations are `[row of the ball, column of the ball, column of the paddle]`.

    Args:
        rows: Height of the board: an episode has `rows - 1` steps.
        columns: Width of the board.
    """

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        self.observation_space = MultiDiscrete([rows, columns, columns])
        self.action_space = Discrete(3)
        self._rows, self._columns = rows, columns
        self._state = np.zeros(3, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Begins an episode; the same seed drops the same balls."""
        super().reset(seed=seed)
        self._state = np.array([0, self.np_random.integers(self._columns), self._columns // 2])
        return self._state.copy(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        """Moves the paddle by `action - 1`, and the ball down by one."""
        self._state[0] += 1
        self._state[2] = np.clip(self._state[2] + action - 1, 0, self._columns - 1)
        _, ball, paddle = self._state
        terminated = bool(self._state[0] == self._rows - 1)
        reward = 0.0 if not terminated else 1.0 if ball == paddle else -1.0
        return self._state.copy(), reward, terminated, False, {}


def make(**kwargs: Any) -> gymnasium.Env[NDArray[np.int64], np.int64]:  # noqa: ANN401  # whatever --env-kwargs says
    """Makes one environment. rollcast calls this for each environment of an actor."""
    return Catch(**kwargs)


if __name__ == "__main__":
    sys.exit(main(["train", "--env-id", "examples.own_environment:make", "--stop-return", "0.95", *sys.argv[1:]]))
