"""An environment whose every number is known beforehand: from its seed, and how many steps it has taken."""

import time
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, SubstepSpaces

EPISODE_STEPS = 7
_N_NUMBERS = 24
_N_HEAD = 5


def observation(seed: int, total: NDArray[np.int64], *, final: bool = False) -> NDArray[np.float32]:
    """Returns what environments of this seed show after `total` steps: integers below 2^16, exact in float32.

    Args:
        seed: The environment's, below 2^32.
        total: `[N]`, steps taken since it was made.
        final: The last observation of the episode that ends here, instead of the first of the next.

    Returns:
        `[N, 24]`: the seed's halves, the episode, its step, the total, and a checksum that fills the rest.
    """
    total = np.asarray(total, np.int64)
    episode, step = np.divmod(total, EPISODE_STEPS)
    if final:
        episode, step = episode - 1, step + EPISODE_STEPS
    head = np.stack(
        [np.full_like(total, seed >> 16), np.full_like(total, seed & 0xFFFF), episode, step, total], axis=-1
    )
    mixed = head @ np.array([40503, 2971, 1597, 7919, 25717]) % 65521
    check = (mixed[..., None] * np.arange(3, 3 + _N_NUMBERS - _N_HEAD) + 17) % 65521
    return np.concatenate([head, check], axis=-1).astype(np.float32)


def stacked(seed: int, total: int, frame_stack: int) -> NDArray[np.float32]:
    """Returns the last observations of the episode up to `total`, its first one repeated: `[K, 24]`."""
    begun = total - total % EPISODE_STEPS
    return observation(seed, np.maximum(np.arange(total - frame_stack + 1, total + 1), begun))


def seed_and_total(observed: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The seeds and the totals that observations `[N, 24]` tell."""
    numbers = observed.astype(np.int64)
    return (numbers[:, 0] << 16) + numbers[:, 1], numbers[:, 4]


def reward(observed: NDArray[np.float32], action: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the reward of acting there: other observations and other actions bring something else."""
    return ((observed[..., -1].astype(np.int64) + 31 * (1 + action)) % 4096).astype(np.float32)


class BookkeepingEnv(gymnasium.Env[np.ndarray, int]):
    """Episodes of `EPISODE_STEPS` steps, every one terminated; see `observation` and `reward`."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (_N_NUMBERS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._step_s = step_s
        self._seed = 0
        self._total = 0
        self._observed = observation(0, np.zeros((), np.int64))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._seed = seed % 2**32
        self._observed = observation(self._seed, np.array(self._total))
        return self._observed, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._step_s:
            time.sleep(self._step_s)
        earned = float(reward(self._observed, np.array(action)))
        self._total += 1
        done = self._total % EPISODE_STEPS == 0
        self._observed = observation(self._seed, np.array(self._total), final=done)
        return self._observed, earned, done, False, {}


def bookkeeping_spaces() -> EnvironmentSpaces:
    """The spaces that actors and learners know."""
    env = BookkeepingEnv()
    return {FLAT_SUBSTEP: SubstepSpaces(observation=env.observation_space, action=gymnasium.spaces.Discrete(4))}
