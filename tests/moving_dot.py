"""A task of images of which one does not tell what to do: which way a dot moves."""

from typing import Any

import gymnasium
import numpy as np

SIZE, LENGTH = 9, 8


class MovingDotEnv(gymnasium.Env[np.ndarray, int]):
    """Shows a dot on a ring of 9 columns, which moves one column a step; acting as it moves earns 1.

    An episode has 8 steps and one direction. A single image tells nothing of the direction, so that nobody earns more
    than 4 on average; whoever sees two images earns 7.5.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (2, SIZE), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._direction, self._column = int(self.np_random.integers(2)), int(self.np_random.integers(SIZE))
        self._n_steps = 0
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        earned = float(action == self._direction)
        self._column = (self._column + 2 * self._direction - 1) % SIZE
        self._n_steps += 1
        return self._image(), earned, self._n_steps == LENGTH, False, {}

    def _image(self) -> np.ndarray:
        image = np.zeros((2, SIZE), np.uint8)
        image[0, self._column] = 255
        return image
