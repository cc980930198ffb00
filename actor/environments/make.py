"""Makes environments, one at a time or as a vector."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode, VectorEnv

from actor.environments import advice
from actor.environments.entry_points import load_entry_point
from actor.environments.one_of_vector import OneOfVector
from actor.environments.pettingzoo_env import AgentPolicies, adapt_pettingzoo
from actor.environments.recovering import RecoveringEnv
from actor.environments.structured import StructuredEnv
from actor.vector.sequential import SequentialVectorEnv
from actor.vector.structured import StructuredVectorEnv
from services.errors import ConfigurationError, InvalidSpaceError, message_of
from services.spaces import (
    FLAT_SUBSTEP,
    EnvironmentSpaces,
    SubstepSpaces,
    check_action_space_supported,
    space_leaves,
)

OnStepFailure = Literal["fail", "drop_episode"]
Vectorization = Literal["auto", "sync", "entry_point", "subprocess", "measure"]

# How long a step may take before the environment is said to hang, in seconds.
DEFAULT_STEP_TIMEOUT_S = 300.0

Environment = gymnasium.Env[Any, Any] | StructuredEnv
Environments = VectorEnv | StructuredVectorEnv


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Makes environments by name; picklable, so that it can travel to a process that is spawned.

    Attributes:
        env_id: A gymnasium id (`"CartPole-v1"`, `"ale_py:ALE/Pong-v5"`), or `"package.module:factory"`, a callable that
            returns a `gymnasium.Env`, a `StructuredEnv`, or one of PettingZoo's
            (`"mpe2.simple_spread_v3:parallel_env"`).
        env_kwargs: Keyword arguments of the environment or factory.
        vectorization: How `make_vector_env` steps many: `"entry_point"`, the vector environment that is registered
            with the id; `"sync"`, one after the other; `"auto"`, the first where there is one; `"subprocess"`, in
            processes, one for each core; `"measure"`, whichever of the two is faster, found by trying.
        agent_policies: For PettingZoo's: agents with equal spaces have one policy, `"shared"`, or each its own,
            `"separate"`.
        on_step_failure: What happens when an environment raises in `step`: `"fail"`, its actor fails; `"drop_episode"`,
            the episode is dropped, and the environment reset. A vector entry point always fails.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vectorization: Vectorization = "auto"
    agent_policies: AgentPolicies = "shared"
    on_step_failure: OnStepFailure = "fail"

    def __post_init__(self) -> None:
        if self.on_step_failure not in get_args(OnStepFailure):
            raise ConfigurationError(
                f"on_step_failure is {self.on_step_failure!r}; expected one of {', '.join(get_args(OnStepFailure))}; "
                "'fail' shows what is wrong at once"
            )
        if self.agent_policies not in get_args(AgentPolicies):
            raise ConfigurationError(
                f"agent_policies is {self.agent_policies!r}; expected one of {', '.join(get_args(AgentPolicies))}; "
                "'shared' learns from all agents at once"
            )
        if self.vectorization not in get_args(Vectorization):
            raise ConfigurationError(
                f"vectorization is {self.vectorization!r}; expected one of {', '.join(get_args(Vectorization))}; "
                "'auto' suits most environments"
            )

    def __call__(self) -> Environment:
        """Makes one environment.

        Raises:
            ConfigurationError: If `env_id` names nothing, or cannot be made with `env_kwargs`.
        """
        factory = self._own_factory()
        if factory is None:
            self.registered_spec()
        try:
            if factory is None:
                # The checker looks at every step; the spaces of a rollout are checked where it arrives anyway.
                env: object = gymnasium.make(self.env_id, disable_env_checker=True, **self.env_kwargs)
            else:
                env = factory(**self.env_kwargs)
        except (Exception, SystemExit) as error:
            raise self._cannot_be_made(error) from error
        if isinstance(env, gymnasium.Env):
            return RecoveringEnv(env) if self.on_step_failure == "drop_episode" else env
        if isinstance(env, StructuredEnv):
            return env
        structured = adapt_pettingzoo(env, self.agent_policies)
        if structured is None:
            raise ConfigurationError(
                f"env_id {self.env_id!r} returned a {type(env).__name__}; expected a gymnasium.Env, a StructuredEnv or "
                "one of PettingZoo's environments; name a factory that returns one"
            )
        return structured

    def vector_spec(self) -> EnvSpec | None:
        """The registered spec if it has a usable vector entry point, else None.

        Raises:
            ConfigurationError: If `env_id` names nothing.
        """
        if self._own_factory() is not None:
            return None
        spec = self.registered_spec()
        # gymnasium refuses to combine a vector entry point with wrappers in the spec.
        return spec if spec.vector_entry_point is not None and not spec.additional_wrappers else None

    def make_registered_vector(self, n_envs: int) -> VectorEnv:
        """Makes the vector environment that is registered with the id.

        Args:
            n_envs: How many environments it steps.

        Raises:
            ConfigurationError: If it cannot be made with `env_kwargs`.
        """
        try:
            return gymnasium.make_vec(
                self.env_id, n_envs, vectorization_mode=VectorizeMode.VECTOR_ENTRY_POINT, **self.env_kwargs
            )
        except (Exception, SystemExit) as error:
            raise self._cannot_be_made(error) from error

    def registered_spec(self) -> EnvSpec:
        """What gymnasium has registered under the id.

        Raises:
            ConfigurationError: If it has nothing.
        """
        try:
            return gymnasium.spec(self.env_id.rpartition(":")[2])
        except gymnasium.error.Error as error:
            raise ConfigurationError(
                f"env_id {self.env_id!r} names no environment; expected an id registered with gymnasium, or "
                f"'package.module:factory'; {advice.for_unknown_id(self.env_id)}"
            ) from error

    def _own_factory(self) -> Callable[..., Any] | None:
        """The callable `env_id` names, or None if it is an id for gymnasium, which writes `module:id` likewise."""
        module_name, colon, attribute = self.env_id.rpartition(":")
        if not colon:
            return None
        # Also for gymnasium: importing the module is what registers the id.
        try:
            module = importlib.import_module(module_name)
        except (ImportError, ValueError, TypeError, SystemExit) as error:
            raise ConfigurationError(
                f"env_id {self.env_id!r} cannot be loaded: {message_of(error)}; expected an importable module before "
                f"the colon; {advice.for_missing_module(error)}"
            ) from error
        is_factory = callable(getattr(module, attribute, None))
        is_id = attribute in gymnasium.registry or not all(part.isidentifier() for part in attribute.split("."))
        return None if is_id and not is_factory else load_entry_point(self.env_id)

    def _cannot_be_made(self, error: BaseException) -> ConfigurationError:
        return ConfigurationError(
            f"env_id {self.env_id!r} cannot be made with env_kwargs {dict(self.env_kwargs)!r}: "
            f"{type(error).__name__}: {message_of(error)}; expected an environment; {advice.for_failure(error)}"
        )


EnvFactory = Callable[[], Environment]
_Kind = TypeVar("_Kind", bound=Environment)


def make_vector_env(
    env_factory: EnvFactory, n_envs: int, *, step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
) -> Environments:
    """Makes a vector environment; of structured environments, a vector of these.

    One that was registered with the id resets in the step after the last of an episode (NEXT_STEP, usually); the
    others in the same step (SAME_STEP), and they hand out one observation buffer again and again: copy what must
    outlive the next step.

    Args:
        env_factory: An `EnvironmentFactory`, or any callable that returns a `gymnasium.Env` or a `StructuredEnv`.
        n_envs: How many environments, at least 1.
        step_timeout_s: How long environments in processes may take to be made, reset or stepped, in seconds.

    Returns:
        The vector environment; the caller closes it.

    Raises:
        ConfigurationError: If `n_envs` is below 1, an environment cannot be made, or `vectorization="entry_point"` is
            asked of an id without one.
        EnvironmentFailedError: An environment raised while its steps were measured, or in its process.
        EnvironmentLostError: The process of an environment ended.
        InvalidSpaceError: If the spaces of two environments differ, or are of a kind that is not supported.
    """
    if n_envs < 1:
        raise ConfigurationError(f"n_envs is {n_envs}; expected at least 1; raise it")
    vectorization = env_factory.vectorization if isinstance(env_factory, EnvironmentFactory) else "sync"
    if vectorization in {"subprocess", "measure"}:
        # One that turns out to be structured is refused in its process.
        flat_factory = cast(Callable[[], gymnasium.Env[Any, Any]], env_factory)
        return _with_supported_spaces(_make_with_processes(flat_factory, n_envs, vectorization, step_timeout_s))
    if isinstance(env_factory, EnvironmentFactory) and vectorization != "sync":
        if env_factory.vector_spec() is not None:
            vector_env = env_factory.make_registered_vector(n_envs)
            return _with_supported_spaces(vector_env)
        if env_factory.vectorization == "entry_point":
            raise ConfigurationError(
                f"vectorization is 'entry_point' but env_id {env_factory.env_id!r} has none; expected an id registered "
                "with a vector_entry_point; use 'auto' or 'sync'"
            )
    first = env_factory()
    if isinstance(first, StructuredEnv):
        drops = isinstance(env_factory, EnvironmentFactory) and env_factory.on_step_failure == "drop_episode"
        factories: list[EnvFactory] = [functools.partial(_same, first), *[env_factory] * (n_envs - 1)]
        return StructuredVectorEnv(factories, drops_episodes=drops)
    return _with_supported_spaces(_make_sync(first, env_factory, n_envs))


def make_single_env(env_factory: EnvFactory) -> Environment:
    """Makes one environment that shows a policy what `make_vector_env` shows it.

    That is the environment itself, except where the vector environment that is registered with its id has other
    spaces, as ALE's has: then it is such a vector, of one.

    Args:
        env_factory: As of `make_vector_env`.

    Returns:
        The environment; the caller closes it.

    Raises:
        ConfigurationError: If it cannot be made.
    """
    if (
        not isinstance(env_factory, EnvironmentFactory)
        or env_factory.vectorization not in {"auto", "entry_point"}
        or env_factory.vector_spec() is None
    ):
        return env_factory()
    vector_env = env_factory.make_registered_vector(1)
    try:
        single = env_factory()
    except ConfigurationError:  # env_kwargs that only the vector knows
        return OneOfVector(vector_env)
    spaces = (vector_env.single_observation_space, vector_env.single_action_space)
    if isinstance(single, gymnasium.Env) and (single.observation_space, single.action_space) == spaces:
        vector_env.close()
        return single
    single.close()
    return OneOfVector(vector_env)


def environment_spaces(vector_env: Environments) -> EnvironmentSpaces:
    """The spaces of one of the environments in a vector, by substep key.

    Args:
        vector_env: The vector environment.

    Returns:
        One entry, under `FLAT_SUBSTEP`; of structured environments, all of theirs.
    """
    if isinstance(vector_env, StructuredVectorEnv):
        return vector_env.spaces
    spaces = SubstepSpaces(observation=vector_env.single_observation_space, action=vector_env.single_action_space)
    return {FLAT_SUBSTEP: spaces}


def _make_sync(first: gymnasium.Env[Any, Any], env_factory: EnvFactory, n_envs: int) -> VectorEnv:
    envs = [first]
    try:
        for index in range(1, n_envs):
            envs.append(cast(gymnasium.Env[Any, Any], env_factory()))
            _check_alike(first, envs[index], index)
        # Not gymnasium's SyncVectorEnv: it keeps final observations without a copy, and a reset overwrites those of
        # an environment that uses one buffer for all its observations. These factories return what has been made.
        return SequentialVectorEnv(
            [functools.partial(_same, env) for env in envs], copy=False, autoreset_mode=AutoresetMode.SAME_STEP
        )
    except BaseException:
        for env in envs:
            env.close()
        raise


def _make_with_processes(
    env_factory: Callable[[], gymnasium.Env[Any, Any]], n_envs: int, vectorization: str, timeout_s: float
) -> VectorEnv:
    # Imported here: an actor that needs no processes starts without their modules.
    factories, mode = [env_factory] * n_envs, AutoresetMode.SAME_STEP
    if vectorization == "measure":
        from actor.vector.auto import make_fastest_vector_env

        return make_fastest_vector_env(factories, autoreset_mode=mode, copy=False, timeout_s=timeout_s)
    from actor.vector.subproc import SubprocVectorEnv

    return SubprocVectorEnv(factories, autoreset_mode=mode, copy=False, timeout_s=timeout_s)


def _same(env: _Kind) -> _Kind:
    return env


def _check_alike(first: gymnasium.Env[Any, Any], env: Environment, index: int) -> None:
    if isinstance(env, StructuredEnv):
        raise ConfigurationError(
            f"environment {index} is a {type(env).__name__}, environment 0 a {type(first).__name__}; expected all of "
            "one kind; make the factory return the same environment every time"
        )
    for name in ("observation_space", "action_space"):
        expected, found = getattr(first, name), getattr(env, name)
        if expected != found:
            raise InvalidSpaceError(
                f"environment {index} has {name} {found}; expected that of environment 0, {expected}; "
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
