"""The common base of the vector environments: interface, checks, statistics, and merging of infos."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.wrapper import EVENTS_KEY
from rollcast.actor.vector.arrays import EnvironmentArrays, Value
from rollcast.actor.vector.environment_group import (
    SET_PROGRESS,
    EnvFactory,
    EnvironmentInfos,
    GroupDescription,
    deal_seeds,
)
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RefusedError
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.spaces.spaces import describe_space, space_leaves

logger = logging.getLogger(__name__)

# The number of episodes after which an epoch of the statistics ends, unless the caller ends the epoch earlier.
_EPISODES_AN_EPOCH = 1000

StepResult: TypeAlias = tuple[Value, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class LockstepVectorEnv(VectorEnv[Value, Value, NDArray[Any]]):
    """A vector of n environments that are stepped together: a `gymnasium.vector.VectorEnv` with pools of seeds.

    Returned values follow gymnasium: `reset` returns observations and infos; `step` returns observations, rewards,
    terminated, truncated and infos. With `AutoresetMode.SAME_STEP`, the last observation and info of an episode are in
    `infos["final_obs"]` and `infos["final_info"]`. With NEXT_STEP, `step` returns this observation and info. Rewards
    are float32, unlike in gymnasium's own vector environments.

    Invariant: the same seeds and actions give bit-identical values in every subclass. After an exception in `reset` or
    `step`, or the loss of an environment, the vector can only be closed. Only one thread uses a vector.

    Args:
        env_factories: Each makes one environment.
        logging_prefix: Logs statistics under this name every 1,000 episodes; None: keeps them without logging.
        autoreset_mode: The time of an environment's reset after its episode has ended, as in gymnasium.
        copy: True: observations are copies. False: they are views that the next step overwrites.

    Attributes:
        statistics: The statistics of the episodes that ended in this epoch. The epoch ends at `reset_epoch`, or after
            1,000 episodes.
    """

    def __init__(
        self,
        env_factories: Sequence[EnvFactory],
        logging_prefix: str | None,
        *,
        autoreset_mode: AutoresetMode | str,
        copy: bool,
    ) -> None:
        if not env_factories:
            raise ConfigurationError(
                "env_factories is empty; expected one factory for each environment; give at least 1"
            )
        self.num_envs = len(env_factories)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.statistics = EpochStatsAggregator()
        self._logging_prefix = logging_prefix
        self._n_counted = 0
        self._copy = copy
        self._arrays: EnvironmentArrays | None = None
        self._seed_pool: list[list[int]] | None = None
        self._failure: str | None = None
        # True once each environment has an episode.
        self._has_begun = False

    @property  # type: ignore[misc]  # gymnasium has a settable property, typed as one generator, and returns a tuple
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # likewise
        """The random generators of the environments, as in gymnasium's own vectors."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # gymnasium types it as one or none
        """The seeds of the environments' random generators."""
        return self.get_attr("np_random_seed")

    def seed(self, seeds: Sequence[int]) -> None:
        """Sets a pool of seeds, one for each episode. `reset()` restarts with the first seed.

        Environment i takes seeds i, i + n, i + 2n and so on, one for each episode. After the last seed, the random
        generator continues, as in gymnasium. `reset(seed=...)` takes precedence over the pool.

        Args:
            seeds: At least one seed for each environment. No seed is negative.

        Raises:
            ConfigurationError: If there are too few seeds, or a seed is negative.
        """
        if len(seeds) < self.num_envs or any(seed < 0 for seed in seeds):
            raise ConfigurationError(
                f"seeds has {len(seeds)} seeds, the smallest {min(seeds, default=None)}; expected at least "
                f"{self.num_envs}, one for each environment, none negative; correct the seeds"
            )
        self._seed_pool = deal_seeds([int(seed) for seed in seeds], self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Value, dict[str, Any]]:
        """Begins an episode in every environment.

        Args:
            seed: A number: environment i gets `seed + i`. A sequence: one seed for each environment. None: the pool
                set by `seed`, if any.
            options: Options for each environment. `options["reset_mask"]`, bool `[n]`, resets only some environments.

        Returns:
            Observations, each leaf `[n, ...]`, and infos.

        Raises:
            ConfigurationError: If the length of `seed` or the mask is not n, or the first mask does not reset all
                environments.
            EnvironmentFailedError: If an environment raised, or returned a value outside its space.
            EnvironmentLostError: If the process of an environment has ended or does not answer.
            RefusedError: If the vector is closed or has failed before.
        """
        arrays = self._ready_arrays()
        options = dict(options) if options is not None else None
        arrays.resets[:] = self._reset_mask(options)
        with NotesFailure(self):
            infos = self._reset_all(self._seeds_for(seed), options)
        self._has_begun = True
        return arrays.observation.all(copy=self._copy), self._merge(infos, ended=())

    def step(self, actions: Value) -> StepResult:
        """Steps every environment once.

        Args:
            actions: Actions nested like the action space, each leaf `[n, ...]`.

        Returns:
            Observations, rewards (float32), terminated, truncated, infos.

        Raises:
            InvalidValueError: If the actions do not fit the action space.
            EnvironmentFailedError: See `reset`.
            EnvironmentLostError: See `reset`.
            RefusedError: See `reset`. Also if an episode has ended and the mode is `AutoresetMode.DISABLED`.
        """
        arrays = self._ready_arrays()
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._check_none_ended(arrays, None)
        arrays.action.put_all(actions)
        with NotesFailure(self):
            infos = self._step_all()
        terminated, truncated = arrays.terminated.copy(), arrays.truncated.copy()
        ended = (terminated | truncated).nonzero()[0].tolist()
        if ended:
            self._count_episodes(ended, infos)
        return (
            arrays.observation.all(copy=self._copy),
            arrays.reward.copy(),
            terminated,
            truncated,
            self._merge(infos, ended),
        )

    def get_actor_rewards(self) -> NDArray[np.float32] | None:
        """Returns None, because the only substep has the reward of the step.

        Structured environments return each substep's share of the rewards, `[n_substeps, n]`.
        """
        return None

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the environment's own
        """Calls a method of every environment, or reads an attribute.

        Args:
            name: The name of the method or attribute; not `reset`, `step` or `close`.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Returns:
            A result for each environment.

        Raises:
            ConfigurationError: If the name is `reset`, `step` or `close`, or the arguments cannot be sent to a process.
            EnvironmentFailedError: If an environment raised, or lacks the attribute; the vector stays usable.
            EnvironmentLostError: See `reset`.
            RefusedError: See `reset`.
        """
        if name in {"reset", "step", "close"}:
            raise ConfigurationError(f"call({name!r}) bypasses this vector; expected another name; use .{name}()")
        self._ready_arrays()
        with NotesFailure(self, EnvironmentFailedError, ConfigurationError):
            return self._call_all(name, args, kwargs)

    def set_progress(self, progress: float) -> None:
        """Calls `set_progress(progress)` of every environment, if all have this method.

        Args:
            progress: The progress of training, in [0, 1].

        Raises:
            EnvironmentFailedError: If an environment raised.
            EnvironmentLostError: See `reset`.
            RefusedError: See `reset`.
        """
        if self._takes_progress:
            self.call(SET_PROGRESS, progress)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Reads an attribute of every environment: `call` without arguments."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:  # noqa: ANN401 - the environment's own
        """Sets an attribute of every environment.

        Args:
            name: The name of the attribute.
            values: A list or tuple with a value for each environment, or one value for all environments.

        Raises:
            ConfigurationError: If the number of values is not n, or the values cannot be sent to a process.
            EnvironmentFailedError: If an environment raised; the vector stays usable.
            EnvironmentLostError: See `reset`.
            RefusedError: See `reset`.
        """
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigurationError(
                f"values has {len(each)} entries; expected {self.num_envs}, one for each environment, or one value"
            )
        self._ready_arrays()
        with NotesFailure(self, EnvironmentFailedError, ConfigurationError):
            self._set_all(name, each)

    def render(self) -> tuple[Any, ...]:
        """Returns the rendering of each environment."""
        return self.call("render")

    @abstractmethod
    def _reset_all(self, seeds: list[list[int]], options: dict[str, Any] | None) -> Mapping[int, EnvironmentInfos]: ...

    @abstractmethod
    def _step_all(self) -> Mapping[int, EnvironmentInfos]: ...

    @abstractmethod
    def _call_all(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]: ...

    @abstractmethod
    def _set_all(self, name: str, values: list[Any]) -> None: ...

    def _take_description(self, descriptions: Sequence[GroupDescription]) -> None:
        """Checks that all environments have the same spaces, and takes their spaces, metadata and render mode."""
        spaces = {index: pair for description in descriptions for index, pair in description.spaces.items()}
        expected = spaces[0]
        for index, pair in sorted(spaces.items()):
            for name, mine, theirs in zip(("observation_space", "action_space"), expected, pair, strict=True):
                if mine != theirs or mine.dtype != theirs.dtype:
                    raise InvalidSpaceError(
                        f"environment {index} has {name} {describe_space(theirs)}; expected the same as environment 0, "
                        f"{describe_space(mine)}; make the factories return environments with equal spaces"
                    )
        for space in expected:
            space_leaves(space)
        self.single_observation_space, self.single_action_space = expected
        self.observation_space = batch_space(expected[0], self.num_envs)
        self.action_space = batch_space(expected[1], self.num_envs)
        self.metadata = descriptions[0].metadata | {"autoreset_mode": self.autoreset_mode}
        self.render_mode = descriptions[0].render_mode
        self._takes_progress = all(description.takes_progress for description in descriptions)

    def _ready_arrays(self) -> EnvironmentArrays:
        """Returns the arrays; raises if the environments cannot be called now."""
        return self._open_arrays()

    def _open_arrays(self) -> EnvironmentArrays:
        if self._failure is not None:
            raise RefusedError(
                f"this vector environment has failed: {self._failure}; expected no call except close() after that; "
                "close this vector and make a new one"
            )
        if self._arrays is None:
            raise RefusedError("this vector environment is closed; expected an open vector; make a new one")
        return self._arrays

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_] | bool:
        mask = options.pop("reset_mask", None) if options is not None else None
        if mask is None:
            return True
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not is_mask or not mask.any():
            raise ConfigurationError(
                f"options['reset_mask'] is {mask!r}; expected a bool array of shape ({self.num_envs},) with at least "
                "one True; omit the mask to reset all"
            )
        if not self._has_begun and not mask.all():
            raise ConfigurationError(
                f"options['reset_mask'] is {mask!r} before the first reset; expected all True, because no environment "
                "has an observation yet; reset all first"
            )
        checked: NDArray[np.bool_] = mask
        return checked

    def _seeds_for(self, seed: int | Sequence[int | None] | None) -> list[list[int]]:
        """Returns the seeds of the next episodes, for each environment."""
        if seed is None:
            return self._seed_pool or [[] for _ in range(self.num_envs)]
        if isinstance(seed, int | np.integer):
            return [[int(seed) + index] for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(
                f"seed has {len(seed)} seeds; expected {self.num_envs}, one for each environment; give one for each, "
                "or one number"
            )
        return [[] if one is None else [int(one)] for one in seed]

    def _check_none_ended(self, arrays: EnvironmentArrays, indices: NDArray[np.int64] | None) -> None:
        ended = np.flatnonzero(arrays.terminated | arrays.truncated).tolist()
        if indices is not None:
            ended = sorted(set(ended).intersection(indices.tolist()))
        if ended:
            raise RefusedError(
                f"the episodes of environments {ended} have ended and autoreset_mode is DISABLED; expected a reset; "
                "call reset(options={'reset_mask': terminated | truncated}) first"
            )

    def _count_episodes(self, ended: Sequence[int], infos: Mapping[int, EnvironmentInfos]) -> None:
        """Adds ended episodes to the statistics."""
        arrays = self._open_arrays()
        for index in ended:
            if self._n_counted == _EPISODES_AN_EPOCH:
                self._end_epoch()
            self._n_counted += 1
            self.statistics.add(
                EpisodeStatistics(
                    env_index=index,
                    episode_return=float(arrays.episode_return[index]),
                    n_steps=int(arrays.episode_length[index]),
                    events=infos[index].of_last_step.get(EVENTS_KEY, ()) if index in infos else (),
                )
            )

    def _end_epoch(self) -> None:
        if self._logging_prefix is not None:
            logger.info("%s: %s", self._logging_prefix, self.statistics.epoch_stats())
        self.statistics.reset_epoch()
        self._n_counted = 0

    def _merge(self, infos: Mapping[int, EnvironmentInfos], ended: Sequence[int]) -> dict[str, Any]:
        """Merges the infos of a step like gymnasium, with the final infos of environments reset in it."""
        merged: dict[str, Any] = {}
        if not infos and not ended:  # nearly every step
            return merged
        arrays = self._open_arrays()
        finals = set(ended) if self.autoreset_mode is AutoresetMode.SAME_STEP else set()
        for index in sorted(finals.union(infos)):
            told = infos.get(index)
            if index in finals:
                final_info = told.final_info if told is not None and told.final_info is not None else {}
                final = {"final_obs": arrays.final_observation.get(index), "final_info": final_info}
                merged = self._add_info(merged, final, index)
            if told is not None:
                merged = self._add_info(merged, told.info, index)
        return merged


class NotesFailure:
    """A context that marks a vector as failed after an error. The state of the environments is then unknown.

    Args:
        vector_env: The vector.
        harmless: The errors after which the environments are in a known state.
    """

    __slots__ = ("_harmless", "_vector_env")

    def __init__(self, vector_env: LockstepVectorEnv, *harmless: type[Exception]) -> None:
        self._vector_env = vector_env
        self._harmless = harmless

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, self._harmless):
            # The text only: the exception's frames would hold memory that `close` frees.
            self._vector_env._failure = f"{type(error).__name__}: {error}"
