"""Steps some of a vector's environments in sequence. Every vector in this package consists of such groups."""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode

from rollcast.actor.environments.failures import EnvironmentFailedError, FailureReport
from rollcast.actor.environments.returned_values import checked_flag, checked_reset, checked_reward, checked_step
from rollcast.actor.environments.structured import StructuredEnv
from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.actor.statistics.wrapper import with_event_statistics
from rollcast.actor.vector.arrays import EnvironmentArrays, Value
from rollcast.services.errors import ConfigurationError, message_of

logger = logging.getLogger(__name__)

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]

# The method of an environment that takes the progress of training.
SET_PROGRESS: Final = "set_progress"

# The array of seeds is int64. Larger seeds are used, too, and shown as -1.
_LARGEST_SHOWN_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The properties of a group's environments.

    Attributes:
        spaces: The observation and action space by index of the environment: for the first environment, and for all
            environments that differ from the first.
        metadata: The first environment's metadata.
        render_mode: The first environment's render mode.
        takes_progress: True: all environments have a method `set_progress`.
    """

    spaces: dict[int, tuple[Space[Any], Space[Any]]]
    metadata: dict[str, Any]
    render_mode: str | None
    takes_progress: bool


@dataclass(frozen=True, slots=True)
class EnvironmentInfos:
    """The infos of one environment in one step.

    Attributes:
        info: The info of the step, or of the reset that followed it.
        final_info: The info of the step that ended an episode, if a reset followed at once.
    """

    info: dict[str, Any]
    final_info: dict[str, Any] | None

    @property
    def of_last_step(self) -> dict[str, Any]:
        """The info of the last step of an episode, with or without a reset after it."""
        return self.info if self.final_info is None else self.final_info


class EnvironmentGroup:
    """The environments `first_index` to `first_index + n - 1` of a vector. One thread uses the group.

    Args:
        env_factories: Each makes one environment. The constructor calls them.
        first_index: The index of the first environment in the vector.
        autoreset_mode: The time of an environment's reset, as in gymnasium.
        info_keys: The returned keys of infos; None: all keys.

    Attributes:
        first_index: The index of the first environment in the vector.

    Raises:
        EnvironmentFailedError: If an environment cannot be made. The group closes all other environments.
    """

    def __init__(
        self,
        env_factories: Sequence[EnvFactory],
        first_index: int,
        autoreset_mode: AutoresetMode,
        info_keys: Collection[str] | None,
    ) -> None:
        self.first_index = first_index
        self._mode = autoreset_mode
        self._info_keys = info_keys
        self._envs: list[gymnasium.Env[Any, Any]] = []
        for index, env_factory in enumerate(env_factories, first_index):
            try:
                self._envs.append(_environment(env_factory))
            except (Exception, SystemExit) as error:
                self.close()
                raise _failed(error, "make", index, None) from error
        self._steps = [env.step for env in self._envs]
        self._seeds: list[Iterator[int]] = [iter(()) for _ in self._envs]
        self._current_seeds: list[int | None] = [None] * len(self._envs)
        self._needs_reset = [False] * len(self._envs)
        self._has_looked_for_mask = False
        # Return and length of the running episodes.
        self._returns = [0.0] * len(self._envs)
        self._n_steps = [0] * len(self._envs)

    def describe(self) -> GroupDescription:
        """Returns the spaces, metadata and render mode of the environments."""
        first = self._envs[0]
        expected = (first.observation_space, first.action_space)
        spaces = {self.first_index: expected}
        for index, env in enumerate(self._envs, self.first_index):
            if (env.observation_space, env.action_space) != expected:
                spaces[index] = (env.observation_space, env.action_space)
        return GroupDescription(
            spaces=spaces,
            metadata=dict(first.metadata),
            render_mode=first.render_mode,
            takes_progress=all(env.has_wrapper_attr(SET_PROGRESS) for env in self._envs),
        )

    def attach(self, arrays: EnvironmentArrays, progress: memoryview, progress_index: int) -> None:
        """Sets the arrays for all values. Call this before the first `reset`.

        Args:
            arrays: The arrays of the whole vector.
            progress: int64 memory. The group writes the index of the running environment to it, so that errors can
                identify a hanging environment.
            progress_index: The index in `progress`.
        """
        self._arrays = arrays
        self._progress = progress
        self._progress_index = progress_index

    def reset(self, seeds: Sequence[Sequence[int]], options: dict[str, Any] | None) -> dict[int, EnvironmentInfos]:
        """Resets the environments that `arrays.resets` selects.

        Args:
            seeds: For each environment of the group, the seeds of the next episodes. After the last seed, the random
                generator continues.
            options: Options for each environment's `reset`.

        Returns:
            The nonempty infos, by index of the environment.

        Raises:
            EnvironmentFailedError: If an environment raised, or returned a value outside its space.
        """
        infos: dict[int, EnvironmentInfos] = {}
        for place in range(len(self._envs)):
            index = self.first_index + place
            if self._arrays.resets[index]:
                self._seeds[place] = iter(seeds[place])
                info = self._reset_one(place, options)
                self._arrays.reward[index] = 0.0
                self._arrays.terminated[index] = False
                self._arrays.truncated[index] = False
                if info:
                    self._note_info(index, info, None, infos)
                if index == 0 and self._info_keys is not None and not self._has_looked_for_mask:
                    self._has_looked_for_mask = True
                    warn_of_ignored_mask(info, self._envs[place].observation_space)
        return infos

    def step(self) -> dict[int, EnvironmentInfos]:
        """Steps every environment once, with the actions in the arrays.

        Returns:
            The nonempty infos, by index of the environment.

        Raises:
            EnvironmentFailedError: See `reset`.
        """
        arrays, progress, progress_index = self._arrays, self._progress, self._progress_index
        get_action, put_observation = arrays.action.get, arrays.observation.put
        rewards, terminateds, truncateds = arrays.reward, arrays.terminated, arrays.truncated
        needs_reset, returns, n_steps = self._needs_reset, self._returns, self._n_steps
        infos: dict[int, EnvironmentInfos] = {}
        index = self.first_index
        for place, step in enumerate(self._steps):
            progress[progress_index] = index
            if needs_reset[place]:
                info = self._reset_one(place, None)
                rewards[index] = 0.0
                terminateds[index] = truncateds[index] = False
                if info:
                    self._note_info(index, info, None, infos)
            else:
                try:
                    observation, reward, terminated, truncated, info = checked_step(step(get_action(index)))
                    put_observation(index, observation)
                    reward = checked_reward(reward)
                    terminateds[index] = terminated = checked_flag(terminated, "terminated")
                    truncateds[index] = truncated = checked_flag(truncated, "truncated")
                    rewards[index] = reward
                    returns[place] += reward
                    n_steps[place] += 1
                except (Exception, SystemExit) as error:
                    raise _failed(error, "step", index, self._current_seeds[place]) from error
                if terminated or truncated:
                    self._end_episode(place, observation, info, infos)
                elif info:
                    self._note_info(index, info, None, infos)
            index += 1
        return infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Calls a method of every environment, or reads an attribute.

        Raises:
            EnvironmentFailedError: If an environment raised.
        """
        results = []
        for place, env in enumerate(self._envs):
            with self.naming(self.first_index + place, name):
                attribute = env.get_wrapper_attr(name)
                results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return results

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Sets an attribute of every environment.

        Args:
            name: The name of the attribute.
            values: A value for each environment of the group.

        Raises:
            EnvironmentFailedError: If an environment raised.
        """
        for place, (env, value) in enumerate(zip(self._envs, values, strict=True)):
            with self.naming(self.first_index + place, "set_attr"):
                env.set_wrapper_attr(name, value)

    @contextmanager
    def naming(self, index: int, doing: str) -> Iterator[None]:
        """Converts an exception of the body to an error with the index and the seed of an environment.

        Args:
            index: The environment's index in the vector.
            doing: See `FailureReport`.

        Raises:
            EnvironmentFailedError: If the body raised.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            raise _failed(error, doing, index, self._current_seeds[index - self.first_index]) from error

    def close(self) -> None:
        """Closes every environment, and logs their exceptions. Idempotent."""
        envs, self._envs = self._envs, []
        close_all(envs, self.first_index)

    def _end_episode(
        self,
        place: int,
        observation: Value,
        info: dict[str, Any],
        infos: dict[int, EnvironmentInfos],
    ) -> None:
        index = self.first_index + place
        self._arrays.episode_return[index] = self._returns[place]
        self._arrays.episode_length[index] = self._n_steps[place]
        if self._mode is AutoresetMode.SAME_STEP:
            self._arrays.final_observation.put(index, observation)
            # Kept before the reset, which may fill the same dictionary.
            final_info = self._kept(info)
            self._note_info(index, self._reset_one(place, None), final_info, infos)
            return
        self._needs_reset[place] = self._mode is AutoresetMode.NEXT_STEP
        self._note_info(index, info, None, infos)

    def _note_info(
        self,
        index: int,
        info: dict[str, Any],
        final_info: dict[str, Any] | None,
        infos: dict[int, EnvironmentInfos],
    ) -> None:
        kept = self._kept(info)
        if kept or final_info:
            infos[index] = EnvironmentInfos(kept, final_info)

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        kept = info if self._info_keys is None else {key: info[key] for key in self._info_keys if key in info}
        return {key: _copied(value) for key, value in kept.items()}

    def _reset_one(self, place: int, options: dict[str, Any] | None) -> dict[str, Any]:
        index = self.first_index + place
        self._progress[self._progress_index] = index
        seed = next(self._seeds[place], None)
        if seed is not None:
            self._current_seeds[place] = seed
            self._arrays.seed[index] = seed if seed <= _LARGEST_SHOWN_SEED else -1
        self._needs_reset[place] = False
        self._returns[place] = 0.0
        self._n_steps[place] = 0
        try:
            observation, info = checked_reset(self._envs[place].reset(seed=seed, options=options))
            self._arrays.observation.put(index, observation)
        except (Exception, SystemExit) as error:
            raise _failed(error, "reset", index, self._current_seeds[place]) from error
        return info


def warn_of_ignored_mask(info: Mapping[str, Any], space: Space[Any]) -> None:
    """Logs that an action mask is only in the info, where policies do not see it.

    Args:
        info: The info of a reset.
        space: The space of the observation beside it.
    """
    if ACTION_MASK in info and not (isinstance(space, Dict) and ACTION_MASK in space.spaces):
        logger.warning(
            "the environment's infos have %r, which no policy sees, and its observations have none; to forbid actions, "
            "use the wrapper rollcast.actor.environments.action_mask:make",
            ACTION_MASK,
        )


def close_all(envs: Iterable[gymnasium.Env[Any, Any] | StructuredEnv], first_index: int = 0) -> None:
    """Closes environments, and logs their exceptions.

    Args:
        envs: The environments.
        first_index: The index of the first environment, for the log.
    """
    for index, env in enumerate(envs, first_index):
        try:
            env.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - environments raise anything
            logger.warning("environment %d raised %s in close(): %s", index, type(error).__name__, message_of(error))


def _environment(env_factory: EnvFactory) -> gymnasium.Env[Any, Any]:
    env: object = env_factory()
    if not isinstance(env, gymnasium.Env):
        raise ConfigurationError(
            f"the factory returned a {type(env).__name__}; expected a gymnasium.Env, because structured environments "
            "cannot be stepped in subprocesses; use vectorization 'auto', and more actors"
        )
    return with_event_statistics(env)


def _copied(value: Any) -> Any:  # noqa: ANN401 - whatever infos have
    """Copies an info's containers and arrays, because environments may reuse them."""
    if isinstance(value, dict):
        return {key: _copied(member) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, list | set | np.ndarray):
        return value.copy()
    return value


def deal_seeds(seeds: Sequence[int], n_envs: int) -> list[list[int]]:
    """Assigns a pool of seeds to environments. Episodes then do not depend on the speed of environments.

    Args:
        seeds: The pool, at least `n_envs` seeds.
        n_envs: The number of environments.

    Returns:
        For environment i: seeds i, i + n_envs, i + 2 n_envs and so on.
    """
    return [list(itertools.islice(seeds, index, None, n_envs)) for index in range(n_envs)]


def _failed(error: BaseException, doing: str, env_index: int, env_seed: int | None) -> EnvironmentFailedError:
    return EnvironmentFailedError(FailureReport.of(error, doing=doing, env_index=env_index, env_seed=env_seed))
