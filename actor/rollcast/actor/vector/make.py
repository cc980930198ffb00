"""Makes vector environments."""

import functools
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeVar, cast

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from rollcast.actor.environments.failures import EnvironmentFailedError, FailureReport
from rollcast.actor.environments.make import (
    DEFAULT_STEP_TIMEOUT_S,
    EnvFactory,
    Environment,
    EnvironmentFactory,
    drops_episodes,
)
from rollcast.actor.environments.recovering import FAILURE_KEY
from rollcast.actor.environments.structured import StructuredEnv
from rollcast.actor.statistics.wrapper import EVENTS_KEY
from rollcast.actor.vector.base import LockstepVectorEnv
from rollcast.actor.vector.environment_group import SET_PROGRESS, close_all
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError
from rollcast.services.spaces.spaces import (
    FLAT_SUBSTEP,
    EnvironmentSpaces,
    SubstepSpaces,
    check_action_space_supported,
    space_leaves,
)


class SubstepEnvironments(Protocol):
    """Environments whose agents act at different times, in one substep or several."""

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment, by substep key."""

    @property
    def num_envs(self) -> int:
        """The number of environments."""

    def set_progress(self, progress: float) -> None:
        """Passes the progress of training, in [0, 1], to the environments."""

    def close(self) -> None:
        """Closes the environments. Idempotent."""


Environments = VectorEnv | SubstepEnvironments

# The keys of infos that a rollout worker reads. Other values may be large, or impossible to pickle.
WORKER_INFO_KEYS: Final = frozenset({EVENTS_KEY, FAILURE_KEY})

_Kind = TypeVar("_Kind", bound=Environment)


def make_vector_env(
    env_factory: EnvFactory,
    n_envs: int,
    *,
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    info_keys: Collection[str] | None = None,
) -> Environments:
    """Makes a vector environment: a `StructuredVectorEnv` if the environments are structured.

    A vector that is registered with the id usually resets in the step after the end of an episode (NEXT_STEP). All
    other vectors reset in the same step (SAME_STEP). They reuse their observation buffer: copy observations that you
    keep.

    Args:
        env_factory: An `EnvironmentFactory`, or any callable that returns a `gymnasium.Env` or a `StructuredEnv`.
        n_envs: The number of environments, at least 1.
        step_timeout_s: The time limit for making, resetting or stepping environments in processes, in seconds.
        info_keys: The returned keys of infos; None: all keys. Has no effect on a registered vector.

    Returns:
        The vector environment; the caller closes it.

    Raises:
        ConfigurationError: If `n_envs` is below 1, an environment cannot be made, or `vectorization="entry_point"` is
            used with an id that has no vector entry point.
        EnvironmentFailedError: If an environment raised in its process, or while its steps were measured.
        EnvironmentLostError: If the process of an environment ended.
        InvalidSpaceError: If the spaces of two environments differ, or are not supported.
    """
    if n_envs < 1:
        raise ConfigurationError(f"n_envs is {n_envs}; expected at least 1; raise it")
    vectorization = env_factory.vectorization if isinstance(env_factory, EnvironmentFactory) else "sync"
    if vectorization in {"subprocess", "measure"}:
        # A structured environment is refused in its process.
        flat_factory = cast(Callable[[], gymnasium.Env[Any, Any]], env_factory)
        return _with_supported_spaces(
            _make_with_processes(flat_factory, n_envs, vectorization, step_timeout_s, info_keys)
        )
    if isinstance(env_factory, EnvironmentFactory) and vectorization != "sync":
        if env_factory.atari and (games := _atari_vector(env_factory, n_envs)) is not None:
            return games
        if env_factory.vector_spec() is not None:
            vector_env = env_factory.make_registered_vector(n_envs)
            return _with_supported_spaces(vector_env)
        if env_factory.vectorization == "entry_point":
            raise ConfigurationError(
                f"vectorization is 'entry_point', but env_id {env_factory.env_id!r} has none; expected an id with a "
                "vector_entry_point; use 'auto' or 'sync'"
            )
    first = env_factory()
    if isinstance(first, StructuredEnv):
        factories: list[EnvFactory] = [functools.partial(_same, first), *[env_factory] * (n_envs - 1)]
        return StructuredVectorEnv(factories, drops_episodes=drops_episodes(env_factory))
    return _with_supported_spaces(_make_sync(first, env_factory, n_envs, info_keys))


def environment_spaces(vector_env: Environments) -> EnvironmentSpaces:
    """Returns the spaces of a vector's environments, by substep key.

    Args:
        vector_env: The vector environment.

    Returns:
        One entry, `FLAT_SUBSTEP`. For environments with substeps: an entry for each substep.
    """
    if not isinstance(vector_env, VectorEnv):
        return vector_env.spaces
    spaces = SubstepSpaces(observation=vector_env.single_observation_space, action=vector_env.single_action_space)
    return {FLAT_SUBSTEP: spaces}


def set_progress(vector_env: Environments, progress: float) -> None:
    """Calls `set_progress(progress)` of the environments or of a registered vector, if this method exists.

    Args:
        vector_env: The vector environment.
        progress: The progress of training, in [0, 1].

    Raises:
        EnvironmentFailedError: An environment raised.
    """
    if isinstance(vector_env, LockstepVectorEnv) or not isinstance(vector_env, VectorEnv):
        vector_env.set_progress(progress)
        return
    method = getattr(vector_env.unwrapped, SET_PROGRESS, None)
    if method is None:
        return
    try:
        method(progress)
    except (Exception, SystemExit) as error:
        raise EnvironmentFailedError(
            FailureReport.of(error, doing=SET_PROGRESS, env_index=None, env_seed=None)
        ) from error


def probe_spaces(env_factory: EnvFactory, *, travel: bool = False) -> EnvironmentSpaces:
    """Makes one environment, reads its spaces, and closes the environment.

    Args:
        env_factory: Makes the environment.
        travel: True: check that the spaces can be sent to a learner, as actors in other processes require.

    Returns:
        The spaces by substep key.

    Raises:
        ConfigurationError: The environment cannot be made.
        InvalidSpaceError: A space is not supported, or exceeds a limit of the protocol.
    """
    vector_env = make_vector_env(env_factory, 1)
    try:
        spaces = environment_spaces(vector_env)
    finally:
        vector_env.close()
    if travel:
        from rollcast.services.spaces.codec import check_spaces_travel  # loads protobuf, which acting does not need

        check_spaces_travel(spaces)
    return spaces


def _atari_vector(env_factory: EnvironmentFactory, n_envs: int) -> VectorEnv | None:
    """Makes ALE's own vector; None if it cannot play these games with the same preprocessing."""
    if env_factory.whole_games or drops_episodes(env_factory):
        return None
    from rollcast.actor.vector.atari import AtariVector, vector_arguments  # loads gymnasium's vectors

    arguments = vector_arguments(env_factory.atari_spec(), env_factory.env_kwargs)
    return None if arguments is None else env_factory.made_with(lambda: AtariVector(arguments, n_envs))


def _make_sync(
    first: gymnasium.Env[Any, Any], env_factory: EnvFactory, n_envs: int, info_keys: Collection[str] | None
) -> VectorEnv:
    envs = [first]
    try:
        for index in range(1, n_envs):
            envs.append(cast(gymnasium.Env[Any, Any], env_factory()))
            _check_alike(first, envs[index], index)
        # Not gymnasium's SyncVectorEnv: it does not copy final observations, and a reset overwrites those of an
        # environment that reuses one buffer. The factories return the environments made above.
        return SequentialVectorEnv(
            [functools.partial(_same, env) for env in envs],
            copy=False,
            autoreset_mode=AutoresetMode.SAME_STEP,
            info_keys=info_keys,
        )
    except BaseException:
        close_all(envs)
        raise


def _make_with_processes(
    env_factory: Callable[[], gymnasium.Env[Any, Any]],
    n_envs: int,
    vectorization: str,
    timeout_s: float,
    info_keys: Collection[str] | None,
) -> VectorEnv:
    # Imported here, so that an actor without processes starts faster.
    factories = [env_factory] * n_envs
    options: dict[str, Any] = {"copy": False, "info_keys": info_keys, "timeout_s": timeout_s}
    try:
        if vectorization == "measure":
            from rollcast.actor.vector.measure import make_fastest_vector_env

            return make_fastest_vector_env(factories, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        from rollcast.actor.vector.subproc import SubprocVectorEnv

        return SubprocVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    except EnvironmentFailedError as error:
        # Raised in the process that makes the environment, as `_make_sync` raises it here.
        if error.exception_type == ConfigurationError.__name__:
            raise ConfigurationError(error.exception_message) from error
        raise


def _same(env: _Kind) -> _Kind:
    return env


def _check_alike(first: gymnasium.Env[Any, Any], env: Environment, index: int) -> None:
    if isinstance(env, StructuredEnv):
        raise ConfigurationError(
            f"environment {index} is a {type(env).__name__}, and environment 0 a {type(first).__name__}; expected the "
            "same kind; make the factory return the same environment every time"
        )
    for name in ("observation_space", "action_space"):
        expected, found = getattr(first, name), getattr(env, name)
        if expected != found:
            raise InvalidSpaceError(
                f"environment {index} has {name} {found}; expected the same as environment 0, {expected}; "
                "make the factory return environments with equal spaces"
            )


def _with_supported_spaces(vector_env: VectorEnv) -> VectorEnv:
    try:
        space_leaves(vector_env.single_observation_space)
        check_action_space_supported(vector_env.single_action_space, where="the environment")
    except BaseException:
        vector_env.close()
        raise
    return vector_env
