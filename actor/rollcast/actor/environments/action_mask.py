"""Moves the action masks that gymnasium environments give in `info` into observations, where policies read them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_sizes
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import NestedObservation

_Info = dict[str, Any]


class ActionMaskFromInfo(gymnasium.Wrapper[NestedObservation, Any, Any, Any]):
    """A wrapper that adds `info["action_mask"]` to the observation: `{"observation": ..., "action_mask": int8 [n]}`.

    If `info` has no mask at the end of an episode, the mask allows everything, because no action follows.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wraps an environment.

        Args:
            env: An environment with Discrete or MultiDiscrete actions.

        Raises:
            InvalidSpaceError: If its actions are of another kind.
        """
        super().__init__(env)
        self._n_actions = sum(action_mask_sizes(env.action_space))
        self.observation_space = Dict(
            {"observation": env.observation_space, ACTION_MASK: Box(0, 1, (self._n_actions,), np.int8)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NestedObservation, _Info]:
        """Begins an episode.

        Raises:
            ConfigurationError: If `info` has no mask, or one of a wrong length.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info, has_ended=False), info

    def step(self, action: Any) -> tuple[NestedObservation, Any, bool, bool, _Info]:  # noqa: ANN401 - gymnasium's
        """Takes a step.

        Raises:
            ConfigurationError: If the episode continues and `info` has no mask, or one of a wrong length.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        masked = self._with_mask(observation, info, has_ended=terminated or truncated)
        return masked, reward, terminated, truncated, info

    def _with_mask(self, observation: NestedObservation, info: _Info, *, has_ended: bool) -> NestedObservation:
        if ACTION_MASK not in info and has_ended:
            mask = np.ones(self._n_actions, np.int8)
        else:
            mask = np.asarray(info.get(ACTION_MASK, ()))
        if mask.shape != (self._n_actions,):
            found = f"a mask of shape {list(mask.shape)}" if ACTION_MASK in info else f"only {sorted(info)}"
            raise ConfigurationError(
                f"info of {self.env} has {found}; expected {ACTION_MASK!r} of shape [{self._n_actions}]; make the "
                "environment give it in reset and in step, or do not use ActionMaskFromInfo"
            )
        return {"observation": observation, ACTION_MASK: mask.astype(np.int8)}


def make(env_id: str, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:  # noqa: ANN401 - the user's --env-kwargs
    """Makes an environment and wraps it in `ActionMaskFromInfo`; a factory for `--env-id`.

        rollcast train --env-id rollcast.actor.environments.action_mask:make --env-kwargs '{"env_id": "Taxi-v4"}'

    Args:
        env_id: As for `EnvironmentFactory`.
        env_kwargs: Keyword arguments of that environment.

    Raises:
        ConfigurationError: If it cannot be made, or is a structured environment.
        InvalidSpaceError: If its actions cannot be masked.
    """
    env = EnvironmentFactory(env_id, env_kwargs)()
    if not isinstance(env, gymnasium.Env):
        env.close()
        raise ConfigurationError(
            f"env_id {env_id!r} is a {type(env).__name__}; expected a gymnasium.Env; structured ones have their "
            "masks in what agents see; name it without rollcast.actor.environments.action_mask"
        )
    return ActionMaskFromInfo(env)
