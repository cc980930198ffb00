"""Adapts PettingZoo's parallel and turn-based environments to `StructuredEnv`.

Terry et al. 2021, "PettingZoo: Gym for Multi-Agent Reinforcement Learning", https://arxiv.org/abs/2009.14471.
"""

import copy
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rollcast.actor.environments.returned_values import InvalidValueError, checked_reset, checked_step
from rollcast.actor.environments.structured import ActorId, AdaptedEnv, Ended, StructuredEnv, Turn
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces

if TYPE_CHECKING:
    from pettingzoo.utils.env import AECEnv, ParallelEnv

AgentPolicies = Literal["shared", "separate"]


def adapt_pettingzoo(env: object, agent_policies: AgentPolicies = "shared") -> StructuredEnv | None:
    """Adapts a PettingZoo environment.

    Args:
        env: Any object.
        agent_policies: `"shared"`: agents with equal spaces share a substep key, and so a policy. `"separate"`: every
            agent has a separate substep, named after the agent.

    Returns:
        The structured environment; None if `env` is not from PettingZoo.

    Raises:
        ConfigurationError: If `env` has no `possible_agents`.
    """
    # A PettingZoo environment exists only if PettingZoo was imported; actors without it need not install it.
    if "pettingzoo" not in sys.modules:
        return None
    from pettingzoo.utils.env import AECEnv, ParallelEnv

    if isinstance(env, ParallelEnv):
        return SimultaneousAgentsEnv(env, agent_policies)
    if isinstance(env, AECEnv):
        return TurnTakingAgentsEnv(env, agent_policies)
    return None


class SimultaneousAgentsEnv(AdaptedEnv):
    """A `ParallelEnv`: all living agents act in every turn.

    Args:
        env: The environment; closed by `close`.
        agent_policies: See `adapt_pettingzoo`.

    Raises:
        ConfigurationError: If `env` has no `possible_agents`.
    """

    def __init__(self, env: "ParallelEnv[Any, Any, Any]", agent_policies: AgentPolicies = "shared") -> None:
        spaces, self._actors = group_agents(env, agent_policies)
        super().__init__(env, spaces)
        self._names = _names_of(self._actors)

    def agent_name(self, actor: ActorId) -> str:
        """Returns PettingZoo's name of the agent."""
        return self._names[actor]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode; see `StructuredEnv.reset`."""
        observations, infos = checked_reset(self._env.reset(seed=seed, options=options))
        return Turn(observations=self._living(observations), infos=self._infos(infos))

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions; see `StructuredEnv.step`."""
        observations, rewards, terminated, truncated, infos = checked_step(
            self._env.step({self._names[actor]: action for actor, action in actions.items()})
        )
        ended: dict[ActorId, Ended] = {}
        # Some environments report the end of an agent again in each later step, without an observation.
        for actor in actions:
            name = self._names[actor]
            terminates = bool(terminated.get(name, False))
            if terminates or truncated.get(name, False):
                ended[actor] = Ended(observation=self._seen_by(name, observations), truncated=not terminates)
        return Turn(
            observations=self._living(observations),
            rewards={self._actor(name): reward for name, reward in rewards.items()},
            ended=ended,
            infos=self._infos(infos),
        )

    def _living(self, observations: Mapping[str, Any]) -> dict[ActorId, Any]:
        return {self._actor(name): self._seen_by(name, observations) for name in self._env.agents}

    def _actor(self, name: str) -> ActorId:
        return _actor_of(name, self._actors)

    def _seen_by(self, name: str, observations: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of any kind
        if name not in observations:
            raise InvalidValueError(
                f"the observations lack {name!r}, and have {sorted(observations)}; expected one for each agent that "
                "acts, and the last one for each agent that ends in this step; return all these observations"
            )
        return observations[name]

    def _infos(self, infos: Mapping[str, Any]) -> dict[ActorId, Any]:
        # Without the infos of other names, such as one for all agents.
        return {self._actors[name]: info for name, info in infos.items() if name in self._actors}


class TurnTakingAgentsEnv(AdaptedEnv):
    """An `AECEnv` (agent environment cycle): one agent acts in every turn.

    Args:
        env: The environment; closed by `close`.
        agent_policies: See `adapt_pettingzoo`.

    Raises:
        ConfigurationError: If `env` has no `possible_agents`.
    """

    def __init__(self, env: "AECEnv[Any, Any, Any]", agent_policies: AgentPolicies = "shared") -> None:
        spaces, self._actors = group_agents(env, agent_policies)
        super().__init__(env, spaces)
        self._names = _names_of(self._actors)

    def agent_name(self, actor: ActorId) -> str:
        """Returns PettingZoo's name of the agent."""
        return self._names[actor]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode; see `StructuredEnv.reset`."""
        self._env.reset(seed=seed, options=options)
        return self._next_turn()

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the action; see `StructuredEnv.step`."""
        (action,) = actions.values()
        self._env.step(action)
        return self._next_turn()

    def _next_turn(self) -> Turn:
        """Skips the agents that have ended, which PettingZoo selects once more, and returns the next turn."""
        rewards: dict[ActorId, float] = {}
        ended: dict[ActorId, Ended] = {}
        infos: dict[ActorId, Mapping[str, Any]] = {}
        while self._env.agents:
            actor = _actor_of(self._env.agent_selection, self._actors)
            # PettingZoo sums the agent's rewards since its last action.
            observation, rewards[actor], terminated, truncated, infos[actor] = self._env.last()
            if not (terminated or truncated):
                return Turn(observations={actor: observation}, rewards=rewards, ended=ended, infos=infos)
            # A copy, because an environment may reuse one buffer for all observations.
            ended[actor] = Ended(observation=copy.deepcopy(observation), truncated=not terminated)
            self._env.step(None)
        return Turn(observations={}, rewards=rewards, ended=ended, infos=infos)


def group_agents(
    env: "AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]", agent_policies: AgentPolicies
) -> tuple[EnvironmentSpaces, dict[str, ActorId]]:
    """Assigns to every agent a substep key, and an index among the agents that share this key.

    Args:
        env: A PettingZoo environment.
        agent_policies: See `adapt_pettingzoo`.

    Returns:
        The spaces by substep key, and the `ActorId` of each agent by its name. A shared key is the first agent's name
        without its trailing number ("listener_0": "listener").

    Raises:
        ConfigurationError: If `env` has no `possible_agents`.
    """
    names = list(getattr(env, "possible_agents", ()))
    if not names:
        raise ConfigurationError(
            f"the environment {env} has no possible_agents; expected the names of all agents that may take part, "
            "because policies are made before the first episode; set the attribute"
        )
    spaces: dict[str, SubstepSpaces] = {}
    actors: dict[str, ActorId] = {}
    for name in names:
        observation, action = env.observation_space(name), env.action_space(name)
        key = None
        if agent_policies == "shared":
            key = next((k for k, s in spaces.items() if (s.observation, s.action) == (observation, action)), None)
        if key is None:
            key = _new_key(name, spaces, agent_policies)
            spaces[key] = SubstepSpaces(observation=observation, action=action, n_agents=0)
        actors[name] = ActorId(key, spaces[key].n_agents)
        spaces[key] = SubstepSpaces(observation=observation, action=action, n_agents=spaces[key].n_agents + 1)
    return spaces, actors


def _names_of(actors: Mapping[str, ActorId]) -> dict[ActorId, str]:
    return {actor: str(name) for name, actor in actors.items()}


def _actor_of(name: str, actors: Mapping[str, ActorId]) -> ActorId:
    if name not in actors:
        raise InvalidValueError(
            f"it has the agent {name!r}; expected one of its possible_agents, {list(actors)[:16]}; add the agent there"
        )
    return actors[name]


def _new_key(name: str, taken: EnvironmentSpaces, agent_policies: AgentPolicies) -> str:
    # No "/", which separates the parts of leaf paths, and no ".", which separates those of a policy's array names.
    whole = re.sub(r"[/.]", "_", str(name))
    key = re.sub(r"_?\d+$", "", whole) if agent_policies == "shared" else whole
    return key if key and key not in taken else whole
