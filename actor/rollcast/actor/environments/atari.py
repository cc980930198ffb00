"""Atari 2600 games with the usual preprocessing: grey frames of 84 by 84, four frames a step, no-op starts."""

from collections.abc import Mapping
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import Wrapper
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces

# Frames [H, W] of a game, before and after preprocessing.
Frame = NDArray[np.uint8]

SCREEN_SIZE: Final = 84
FRAME_SKIP: Final = 4
MAX_NO_OPS: Final = 30

# Height and width of ALE's screen.
_RAW_SIZE: Final = (210, 160)
_ALE_ENTRY_POINT: Final = "ale_py.env:AtariEnv"
_NO_OP: Final = 0
# Arguments of ALE's environment that preprocessing chooses itself, or cannot work with.
_FIXED: Final = {
    "frameskip": f"a step is {FRAME_SKIP} frames already",
    "obs_type": "observations are grey frames already",
    "sound_obs": "observations are frames, without sound",
    "continuous": "the no-ops at the start of a game are discrete actions",
}


def is_atari(spec: EnvSpec) -> bool:
    """Returns True for a game of the Arcade Learning Environment."""
    return spec.entry_point == _ALE_ENTRY_POINT


def raw_frames_hint(spaces: EnvironmentSpaces) -> str:
    """Returns a line that recommends `--atari` if observations are a game's raw frames; otherwise an empty string."""
    raw = [substep.observation.shape for substep in spaces.values() if isinstance(substep.observation, Box)]
    if not any(shape[:2] == _RAW_SIZE for shape in raw):
        return ""
    return (
        "hint           observations are raw frames of Atari, 210 by 160; with --atari they are 84 by 84 and grey, a "
        "step is 4 frames, and the policy sees 4 observations at once"
    )


def check_atari(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> None:
    """Checks that a game can be made from its spec and its arguments.

    Args:
        spec: The registered spec.
        env_kwargs: Further arguments of ALE's environment.

    Raises:
        ConfigurationError: If the spec is not a game of ALE, or an argument contradicts the preprocessing.
    """
    if not is_atari(spec):
        raise ConfigurationError(
            f"env_id is {spec.id!r} with atari, but that is not an Atari game; expected a game of the Arcade Learning "
            "Environment, such as 'ALE/Pong-v5'; choose one, or omit atari"
        )
    for name in sorted(_FIXED.keys() & env_kwargs.keys()):
        raise ConfigurationError(
            f"env_kwargs have {name} {env_kwargs[name]!r} with atari, but {_FIXED[name]}; expected other arguments; "
            f"omit {name}, or omit atari"
        )


def make_atari(spec: EnvSpec, env_kwargs: Mapping[str, Any], *, whole_games: bool) -> gymnasium.Env[Frame, int]:
    """Makes a game with gymnasium's preprocessing: single frames, uint8 `[84, 84]`; the policy stacks them.

    - A step repeats its action for 4 frames. Because sprites flicker, the observation is the maximum of the last two
      frames.
    - A game begins with 1 to 30 no-ops.
    - In training a lost life ends the episode, as in Mnih et al. 2015; see `LifeLossEnds`.
    - ALE adds the sticky actions: the ids `ALE/...-v5` repeat the last action with probability 0.25 in every frame
      (Machado et al. 2018, "Revisiting the Arcade Learning Environment", https://arxiv.org/abs/1709.06009).
    - Rewards are those of the game. The learner clips them.

    Args:
        spec: The registered spec, checked by `check_atari`.
        env_kwargs: Further arguments of ALE's environment, such as `difficulty` or `repeat_action_probability`.
        whole_games: True, for evaluation: an episode is a whole game.
    """
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing

    # otherwise each environment prints a banner
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    # Grey frames, because the wrapper asks the emulator for its screen again: less to draw in every frame.
    game = gymnasium.make(spec, disable_env_checker=True, frameskip=1, obs_type="grayscale", **env_kwargs)
    preprocessed = AtariPreprocessing(game, noop_max=MAX_NO_OPS, frame_skip=FRAME_SKIP, screen_size=SCREEN_SIZE)
    return preprocessed if whole_games else LifeLossEnds(preprocessed)


class LifeLossEnds(Wrapper[Frame, int, Frame, int]):
    """A game in which a lost life ends the episode; the next episode continues with the next life.

    gymnasium's `terminal_on_life_loss` begins a new game after each lost life, so that no actor ever plays the second
    life. A reset with a seed, or before the end of an episode, always begins a new game.
    """

    def __init__(self, env: gymnasium.Env[Frame, int]) -> None:
        """Wraps a game.

        Args:
            env: A game of ALE.
        """
        super().__init__(env)
        self._lives = 0
        # The game continues after the episode that has just ended.
        self._goes_on = False

    def step(self, action: int) -> tuple[Frame, SupportsFloat, bool, bool, dict[str, Any]]:
        """Steps the game. A lost life sets `terminated`, too."""
        # if this raises, the next reset begins a new game
        self._goes_on = False
        observation, reward, terminated, truncated, info = self.env.step(action)
        lost = self._count_lives() < 0
        self._goes_on = lost and not terminated and not truncated
        return observation, reward, terminated or lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begins a new game, or the next life of the current game with a no-op."""
        goes_on, self._goes_on = self._goes_on and seed is None, False
        if goes_on:
            observation, _, terminated, truncated, info = self.env.step(_NO_OP)
            if not terminated and not truncated:
                self._count_lives()
                return observation, info
        observation, info = self.env.reset(seed=seed, options=options)
        self._count_lives()
        return observation, info

    def _count_lives(self) -> int:
        """Returns the change in the number of lives."""
        lives: int = self.env.get_wrapper_attr("ale").lives()
        change, self._lives = lives - self._lives, lives
        return change
