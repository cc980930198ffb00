"""Moves action masks from `info` into observations, where policies read them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from rollcast.actor.environments.make import Environment, EnvironmentFactory
from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_sizes
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import NestedObservation, SubstepSpaces

_Info = dict[str, Any]


class ActionMaskFromInfo(gymnasium.Wrapper[NestedObservation, Any, Any, Any]):
    """A wrapper that adds `info["action_mask"]` to the observation: `{"observation": ..., "action_mask": int8 [n]}`.

    If `info` has no mask at the end of an episode, the mask allows everything, because no action follows.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wraps an environment.

        Args:
            env: The environment, with Discrete or MultiDiscrete actions.

        Raises:
            InvalidSpaceError: If the environment has actions of another kind.
        """
        super().__init__(env)
        spaces = _with_mask_space(SubstepSpaces(observation=env.observation_space, action=env.action_space))
        self.observation_space = spaces.observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NestedObservation, _Info]:
        """Begins an episode.

        Raises:
            ConfigurationError: If `info` has no mask, or a mask of a wrong length.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info, has_ended=False), info

    def step(self, action: Any) -> tuple[NestedObservation, Any, bool, bool, _Info]:  # noqa: ANN401 - gymnasium's
        """Takes a step.

        Raises:
            ConfigurationError: If the episode continues and `info` has no mask, or a mask of a wrong length.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        masked = self._masked(observation, info, has_ended=terminated or truncated)
        return masked, reward, terminated, truncated, info

    def _masked(self, observation: NestedObservation, info: _Info, *, has_ended: bool) -> NestedObservation:
        return _with_mask(self.observation_space, observation, info, has_ended=has_ended, whose=f"{self.env}")


class StructuredActionMaskFromInfo(StructuredEnv):
    """A wrapper that moves each agent's mask from `infos`, as in newer PettingZoo games, into its observation."""

    def __init__(self, env: StructuredEnv) -> None:
        """Wraps an environment.

        Args:
            env: An environment whose agents all have Discrete or MultiDiscrete actions.

        Raises:
            InvalidSpaceError: If actions are of another kind.
        """
        self._env = env
        self.spaces = {key: _with_mask_space(spaces) for key, spaces in env.spaces.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode.

        Raises:
            ConfigurationError: If the info of an acting agent has no mask, or a mask of a wrong length.
        """
        return self._masked(self._env.reset(seed=seed, options=options))

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions of a turn.

        Raises:
            ConfigurationError: As for `reset`.
        """
        return self._masked(self._env.step(actions))

    def agent_name(self, actor: ActorId) -> str:
        """Returns the environment's name of the agent."""
        return self._env.agent_name(actor)

    def layers(self) -> Iterator[object]:
        """Yields this wrapper and the environment's layers."""
        yield self
        yield from self._env.layers()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _masked(self, turn: Turn) -> Turn:
        def add(actor: ActorId, observation: NestedObservation, *, has_ended: bool) -> NestedObservation:
            space, info = self.spaces[actor.substep_key].observation, turn.infos.get(actor, {})
            return _with_mask(space, observation, info, has_ended=has_ended, whose=f"{actor}")

        return replace(
            turn,
            observations={actor: add(actor, seen, has_ended=False) for actor, seen in turn.observations.items()},
            ended={
                actor: Ended(observation=add(actor, end.observation, has_ended=True), truncated=end.truncated)
                for actor, end in turn.ended.items()
            },
        )


def _with_mask_space(spaces: SubstepSpaces) -> SubstepSpaces:
    mask = Box(0, 1, (sum(action_mask_sizes(spaces.action)),), np.int8)
    return replace(spaces, observation=Dict({"observation": spaces.observation, ACTION_MASK: mask}))


def _with_mask(
    space: gymnasium.Space[Any], observation: NestedObservation, info: Mapping[str, Any], *, has_ended: bool, whose: str
) -> NestedObservation:
    shape = space[ACTION_MASK].shape  # type: ignore[index]  # a Dict
    mask = np.ones(shape, np.int8) if ACTION_MASK not in info and has_ended else np.asarray(info.get(ACTION_MASK, ()))
    if mask.shape != shape:
        found = f"a mask of shape {list(mask.shape)}" if ACTION_MASK in info else f"only {sorted(info)}"
        raise ConfigurationError(
            f"info of {whose} has {found}; expected {ACTION_MASK!r} of shape {list(shape)}; return the "
            "mask in the info of reset and step, or do not use ActionMaskFromInfo"
        )
    return {"observation": observation, ACTION_MASK: mask.astype(np.int8)}


def make(env_id: str, **env_kwargs: Any) -> Environment:  # noqa: ANN401 - the user's --env-kwargs
    """Makes an environment whose observations contain the masks of its infos; a factory for `--env-id`.

        rollcast train --env-id rollcast.actor.environments.action_mask:make --env-kwargs '{"env_id": "Taxi-v4"}'

    Args:
        env_id: See `EnvironmentFactory`. Ids of PettingZoo work, too.
        env_kwargs: Keyword arguments of that environment.

    Raises:
        ConfigurationError: If the environment cannot be made.
        InvalidSpaceError: If the environment's actions cannot be masked.
    """
    env = EnvironmentFactory(env_id, env_kwargs)()
    return ActionMaskFromInfo(env) if isinstance(env, gymnasium.Env) else StructuredActionMaskFromInfo(env)
