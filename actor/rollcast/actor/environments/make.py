"""Makes environments by gymnasium id or by the name of a factory, one at a time."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import VectorEnv

from rollcast.actor.entry_points import import_module, load_entry_point
from rollcast.actor.environments import install_advice
from rollcast.actor.environments.atari import check_atari, is_atari, make_atari
from rollcast.actor.environments.one_of_vector import OneOfVector
from rollcast.actor.environments.pettingzoo import AgentPolicies, adapt_pettingzoo
from rollcast.actor.environments.recovering import RecoveringEnv
from rollcast.actor.environments.structured import StructuredEnv
from rollcast.services.errors import ConfigurationError, message_of
from rollcast.services.process.installation import require_extra

OnStepFailure = Literal["fail", "drop_episode"]
Vectorization = Literal["auto", "sync", "entry_point", "subprocess", "measure"]

# Longest time for a step before the environment counts as hanging, in seconds.
DEFAULT_STEP_TIMEOUT_S = 300.0

Environment = gymnasium.Env[Any, Any] | StructuredEnv

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class EnvironmentFactory:
    """Makes environments by name. A factory can be pickled and sent to a spawned process.

    Attributes:
        env_id: A gymnasium id (`"CartPole-v1"`, `"ale_py:ALE/Pong-v5"`), or `"package.module:factory"`, a callable that
            returns a `gymnasium.Env`, a `StructuredEnv`, or a PettingZoo environment
            (`"mpe2.simple_spread_v3:parallel_env"`).
        env_kwargs: Keyword arguments of the environment or factory.
        vectorization: The method with which `make_vector_env` steps several environments. `"entry_point"`: with the
            vector environment registered with the id. `"sync"`: one after the other. `"auto"`: with the entry point if
            there is one, otherwise like `"sync"`. `"subprocess"`: in processes, one for each core. `"measure"`: the
            faster of `"sync"` and `"subprocess"`, as measured at the start.
        agent_policies: For PettingZoo: agents with equal spaces share a policy (`"shared"`), or each agent has its own
            policy (`"separate"`).
        on_step_failure: The reaction to an exception in `step`, or a wrong value from it. `"fail"`: the actor fails.
            `"drop_episode"`: the actor drops the episode and resets the environment. With a vector entry point, the
            actor always fails.
        atari: The environment is a game of ALE, with the preprocessing of `atari.make_atari`.
        whole_games: An episode of an Atari game is a whole game instead of a life. For evaluation.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vectorization: Vectorization = "auto"
    agent_policies: AgentPolicies = "shared"
    on_step_failure: OnStepFailure = "fail"
    atari: bool = False
    whole_games: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str):
            raise ConfigurationError(
                f"env_id is {self.env_id!r}; expected a name, such as 'CartPole-v1' or 'package.module:factory'; a "
                "class or function that makes the environment is itself a factory: use it in place of "
                "EnvironmentFactory. A factory of a notebook cannot be sent to actors in processes: put it in a file "
                "and name it, or use SequentialDistributedActors"
            )
        for name, choices, advice in (
            ("on_step_failure", OnStepFailure, "'fail' shows what is wrong at once"),
            ("agent_policies", AgentPolicies, "'shared' learns from all agents at once"),
            ("vectorization", Vectorization, "'auto' suits most environments"),
        ):
            if getattr(self, name) not in get_args(choices):
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(choices))}; {advice}"
                )
        if self.atari and self.vectorization == "entry_point":
            raise ConfigurationError(
                "vectorization is 'entry_point' with atari, but ALE's own vector preprocesses and stacks itself; "
                "expected auto, sync, subprocess or measure; choose one of them, or omit atari"
            )

    def __call__(self) -> Environment:
        """Makes one environment.

        Raises:
            ConfigurationError: If no environment has the name `env_id`, or `env_kwargs` do not fit.
        """
        if self.atari:
            spec = self.atari_spec()
            return self._recovering(
                self.made_with(lambda: make_atari(spec, self.env_kwargs, whole_games=self.whole_games))
            )
        factory = self._own_factory()
        if factory is None:
            self.registered_spec()
        # gymnasium's checker costs time in every step, and rollouts are checked anyway.
        make = factory or functools.partial(gymnasium.make, self.env_id, disable_env_checker=True)
        env: object = self.made_with(functools.partial(make, **self.env_kwargs))
        if isinstance(env, gymnasium.Env):
            return self._recovering(env)
        if isinstance(env, StructuredEnv):
            return env
        structured = adapt_pettingzoo(env, self.agent_policies)
        if structured is None:
            raise ConfigurationError(
                f"env_id {self.env_id!r} returned a {type(env).__name__}; expected a gymnasium.Env, a StructuredEnv or "
                "a PettingZoo environment; name a factory that returns one"
            )
        return structured

    def vector_spec(self) -> EnvSpec | None:
        """Returns the registered spec if it has a usable vector entry point, otherwise None.

        Raises:
            ConfigurationError: If no environment has the name `env_id`.
        """
        if self.atari or self._own_factory() is not None:
            return None
        spec = self.registered_spec()
        # gymnasium does not combine a vector entry point with wrappers in the spec.
        return spec if spec.vector_entry_point is not None and not spec.additional_wrappers else None

    def make_registered_vector(self, n_envs: int) -> VectorEnv:
        """Makes the vector environment that is registered with the id.

        Args:
            n_envs: The number of environments in the vector.

        Raises:
            ConfigurationError: If the vector cannot be made with `env_kwargs`.
        """
        mode = VectorizeMode.VECTOR_ENTRY_POINT
        return self.made_with(
            lambda: gymnasium.make_vec(self.env_id, n_envs, vectorization_mode=mode, **self.env_kwargs)
        )

    def registered_spec(self) -> EnvSpec:
        """Returns the spec that gymnasium has registered under the id.

        Raises:
            ConfigurationError: gymnasium has no environment with this id.
        """
        try:
            return gymnasium.spec(self.env_id.rpartition(":")[2])
        except gymnasium.error.Error as error:
            raise ConfigurationError(
                f"env_id {self.env_id!r} names no environment; expected an id registered with gymnasium, or "
                f"'package.module:factory'; {install_advice.for_unknown_id(self.env_id)}"
            ) from error

    def atari_spec(self) -> EnvSpec:
        """Returns the registered spec of a game.

        Raises:
            ConfigurationError: If `env_id` names no game, or `env_kwargs` contradict the preprocessing.
        """
        require_extra("atari", "--atari")
        import ale_py  # registers its games

        gymnasium.register_envs(ale_py)
        if self._own_factory() is not None:
            raise ConfigurationError(
                f"env_id {self.env_id!r} is a factory with atari; expected a game of the Arcade Learning Environment, "
                "such as 'ALE/Pong-v5'; choose one, or omit atari, and preprocess in the factory"
            )
        spec = self.registered_spec()
        check_atari(spec, self.env_kwargs)
        return spec

    def may_be_game(self) -> bool:
        """Returns False if `env_id` certainly names no game of ALE. An unknown id may be one: see `atari_spec`.

        Raises:
            ConfigurationError: If a module that `env_id` names cannot be imported.
        """
        if self._own_factory() is not None:
            return False
        try:
            return is_atari(self.registered_spec())
        except ConfigurationError:
            return True

    def made_with(self, make: Callable[[], _Made]) -> _Made:
        """Calls `make` and returns its result.

        Raises:
            ConfigurationError: If `make` raised.
        """
        try:
            return make()
        except (Exception, SystemExit) as error:
            raise self._cannot_be_made(error) from error

    def _recovering(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return RecoveringEnv(env) if self.on_step_failure == "drop_episode" else env

    def _own_factory(self) -> Callable[..., Any] | None:
        """Returns the callable that `env_id` names; None for an id of gymnasium, which may also be `module:id`."""
        module_name, colon, attribute = self.env_id.rpartition(":")
        if not colon:
            return None
        # Needed for gymnasium's ids, too: importing the module registers the id.
        try:
            module = import_module(module_name)
        except (ImportError, ValueError, TypeError, SystemExit) as error:
            raise ConfigurationError(
                f"env_id {self.env_id!r} cannot be loaded: {message_of(error)}; expected an importable module before "
                f"the colon; {install_advice.for_missing_module(error)}"
            ) from error
        is_factory = callable(getattr(module, attribute, None))
        is_id = attribute in gymnasium.registry or not all(part.isidentifier() for part in attribute.split("."))
        return None if is_id and not is_factory else load_entry_point(self.env_id)

    def _cannot_be_made(self, error: BaseException) -> ConfigurationError:
        return ConfigurationError(
            f"env_id {self.env_id!r} cannot be made with env_kwargs {dict(self.env_kwargs)!r}: "
            f"{type(error).__name__}: {message_of(error)}; expected an environment; {install_advice.for_failure(error)}"
        )


EnvFactory = Callable[[], Environment]


def drops_episodes(env_factory: EnvFactory) -> bool:
    """Returns True if an actor drops an episode in which the environment raises, and continues."""
    return isinstance(env_factory, EnvironmentFactory) and env_factory.on_step_failure == "drop_episode"


def whole_episodes(env_factory: EnvFactory) -> EnvFactory:
    """Returns a factory of environments for evaluation.

    An Atari episode is then a whole game, not a life. An exception ends the evaluation, because a dropped episode would
    be incomplete.
    """
    if not isinstance(env_factory, EnvironmentFactory):
        return env_factory
    return replace(env_factory, whole_games=env_factory.atari, on_step_failure="fail")


def make_single_env(env_factory: EnvFactory) -> Environment:
    """Makes one environment with the same spaces as in `make_vector_env`.

    If the registered vector environment has different spaces from the environment, as for ALE, this function returns a
    vector of one environment.

    Args:
        env_factory: See `make_vector_env`.

    Returns:
        The environment; the caller closes it.

    Raises:
        ConfigurationError: If the environment cannot be made.
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
