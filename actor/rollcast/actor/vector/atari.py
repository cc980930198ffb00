"""Steps several Atari games at once with ALE's own vector, without Python code for each frame."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollcast.actor.environments.atari import FRAME_SKIP, MAX_NO_OPS, SCREEN_SIZE
from rollcast.actor.vector.arrays import check_batch, discrete_schema

# The arguments of ALE's environment that its vector has, too.
_ARGUMENTS: Final = frozenset({"game", "repeat_action_probability", "full_action_space", "max_num_frames_per_episode"})
# Arguments of registered games that preprocessing replaces.
_REPLACED: Final = frozenset({"obs_type", "frameskip"})
# ALE takes a seed as a C int.
_MAX_SEED: Final = np.iinfo(np.int32).max


def vector_arguments(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of ALE's vector for a game; None if the vector lacks an argument, such as `difficulty`.

    Args:
        spec: The registered spec of the game.
        env_kwargs: Further arguments of ALE's environment.
    """
    arguments = {**spec.kwargs, **env_kwargs}
    if spec.additional_wrappers or not arguments.keys() <= _ARGUMENTS | _REPLACED or "game" not in arguments:
        return None
    return {name: value for name, value in arguments.items() if name in _ARGUMENTS and value is not None}


class AtariVector(VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]):
    """Games with the preprocessing of `atari.make_atari`, stepped by one thread of ALE: frames uint8 `[B, 84, 84]`.

    This vector resets in the same step. A lost life ends an episode. The final observation is then also the first
    observation of the next episode, while `LifeLossEnds` takes a no-op between them. ALE draws the number of no-ops at
    the beginning of a game, from 0 to 30.

    Args:
        arguments: The result of `vector_arguments`.
        n_envs: B.
    """

    def __init__(self, arguments: Mapping[str, Any], n_envs: int) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._games = AtariVectorEnv(
            **arguments,
            num_envs=n_envs,
            num_threads=1,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=SCREEN_SIZE,
            img_width=SCREEN_SIZE,
            stack_num=1,
            frameskip=FRAME_SKIP,
            noop_max=MAX_NO_OPS,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self.num_envs = n_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = Box(0, 255, (SCREEN_SIZE, SCREEN_SIZE), np.uint8)
        self.single_action_space = self._games.single_action_space
        self._allowed_actions = discrete_schema(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._lives: NDArray[np.int32] = np.zeros(n_envs, np.int32)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins a new game in every environment.

        Args:
            seed: One seed for each environment, or the first of consecutive seeds; None: the generators continue.
            options: As in ALE's vector.
        """
        # -1: the generator continues
        seeds = (
            np.array([-1 if one is None else one % _MAX_SEED for one in seed]) if isinstance(seed, Sequence) else seed
        )
        observation, infos = self._games.reset(seed=seeds, options=options)
        self._lives = infos["lives"].copy()
        return observation[:, 0], {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps every game by four frames.

        Args:
            actions: int64 `[B]`.

        Returns:
            Frames, the games' rewards, terminated (also after a lost life), truncated, and infos with `final_obs` uint8
            `[B, 84, 84]` if an episode has ended.

        Raises:
            InvalidValueError: If an action is outside the action space; ALE would never return.
        """
        assert self._allowed_actions is not None  # all games have discrete actions
        check_batch(self._allowed_actions, actions, "the action")
        observation, reward, terminated, truncated, infos = self._games.step(actions)
        frame, lives, over = observation[:, 0], infos["lives"], terminated | truncated
        lost = (lives < self._lives) & ~over
        self._lives = lives.copy()
        if not lost.any() and not over.any():
            return frame, reward, terminated, truncated, {}
        final = frame.copy()
        if over.any():
            final[over] = infos["final_obs"][over, 0]
        return frame, reward, terminated | lost, truncated, {"final_obs": final}
