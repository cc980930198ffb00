"""PettingZoo's environments as structured ones: those in which agents act at once, and those in which they take turns.

Terry et al. 2021, "PettingZoo: Gym for Multi-Agent Reinforcement Learning", https://arxiv.org/abs/2009.14471.
"""

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.statistics.wrapper import wrapped_layers
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces

if TYPE_CHECKING:
    from pettingzoo.utils.env import AECEnv, ParallelEnv

AgentPolicies = Literal["shared", "separate"]


def adapt_pettingzoo(env: object, agent_policies: AgentPolicies = "shared") -> StructuredEnv | None:
    """Makes a structured environment of one of PettingZoo's.

    Args:
        env: Any object.
        agent_policies: `"shared"`: agents with equal spaces share a substep key, and so a policy. `"separate"`: every
            agent has a substep of its own, named after it.

    Returns:
        The structured environment; None if `env` is none of PettingZoo's.

    Raises:
        ConfigurationError: If it does not name its agents beforehand (`possible_agents`).
    """
    # Whoever has made such an environment has imported it; an actor without PettingZoo needs none.
    if "pettingzoo" not in sys.modules:
        return None
    from pettingzoo.utils.env import AECEnv, ParallelEnv

    if isinstance(env, ParallelEnv):
        return SimultaneousAgentsEnv(env, agent_policies)
    if isinstance(env, AECEnv):
        return TurnTakingAgentsEnv(env, agent_policies)
    return None


class SimultaneousAgentsEnv(StructuredEnv):
    """A `ParallelEnv`: all living agents act in every turn.

    Args:
        env: The environment; closed by `close`.
        agent_policies: As of `adapt_pettingzoo`.

    Raises:
        ConfigurationError: Likewise.
    """

    def __init__(self, env: "ParallelEnv[Any, Any, Any]", agent_policies: AgentPolicies = "shared") -> None:
        self._env = env
        self.spaces, self._actors = group_agents(env, agent_policies)
        self._names = {actor: name for name, actor in self._actors.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode; see `StructuredEnv.reset`."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return Turn(observations=self._living(observations), infos=self._by_actor(infos))

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions; see `StructuredEnv.step`."""
        observations, rewards, terminated, truncated, infos = self._env.step(
            {self._names[actor]: action for actor, action in actions.items()}
        )
        return Turn(
            observations=self._living(observations),
            rewards=self._by_actor(rewards),
            ended={
                self._actors[name]: Ended(observation=observations[name], truncated=not terminated[name])
                for name in terminated
                if terminated[name] or truncated[name]
            },
            infos=self._by_actor(infos),
        )

    def layers(self) -> Iterator[object]:
        """Itself, the environment's wrappers, and the environment."""
        yield self
        yield from wrapped_layers(self._env)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _living(self, observations: Mapping[str, Any]) -> dict[ActorId, Any]:
        return {self._actors[name]: observations[name] for name in self._env.agents}

    def _by_actor(self, values: Mapping[str, Any]) -> dict[ActorId, Any]:
        return {self._actors[name]: value for name, value in values.items()}


class TurnTakingAgentsEnv(StructuredEnv):
    """An `AECEnv` (agent environment cycle): one agent acts in every turn.

    Args:
        env: The environment; closed by `close`.
        agent_policies: As of `adapt_pettingzoo`.

    Raises:
        ConfigurationError: Likewise.
    """

    def __init__(self, env: "AECEnv[Any, Any, Any]", agent_policies: AgentPolicies = "shared") -> None:
        self._env = env
        self.spaces, self._actors = group_agents(env, agent_policies)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode; see `StructuredEnv.reset`."""
        self._env.reset(seed=seed, options=options)
        return self._next_turn()

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the action; see `StructuredEnv.step`."""
        (action,) = actions.values()
        self._env.step(action)
        return self._next_turn()

    def layers(self) -> Iterator[object]:
        """Itself, the environment's wrappers, and the environment."""
        yield self
        yield from wrapped_layers(self._env)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _next_turn(self) -> Turn:
        """Goes past the agents that have ended, each of which is selected once more, to the next that acts."""
        rewards: dict[ActorId, float] = {}
        ended: dict[ActorId, Ended] = {}
        infos: dict[ActorId, Mapping[str, Any]] = {}
        while self._env.agents:
            actor = self._actors[self._env.agent_selection]
            # The reward is all that it has earned since it acted.
            observation, rewards[actor], terminated, truncated, infos[actor] = self._env.last()
            if not (terminated or truncated):
                return Turn(observations={actor: observation}, rewards=rewards, ended=ended, infos=infos)
            # A copy: the next `last()` overwrites it where the environment has one buffer for all observations.
            ended[actor] = Ended(observation=copy.deepcopy(observation), truncated=not terminated)
            self._env.step(None)
        return Turn(observations={}, rewards=rewards, ended=ended, infos=infos)


def group_agents(
    env: "AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]", agent_policies: AgentPolicies
) -> tuple[EnvironmentSpaces, dict[str, ActorId]]:
    """Gives every agent a substep key, and an index among those that share it.

    Args:
        env: One of PettingZoo's.
        agent_policies: As of `adapt_pettingzoo`.

    Returns:
        The spaces by substep key, and who each agent is, by its name. A key that agents share is the first one's name
        without the number at its end ("listener_0": "listener").

    Raises:
        ConfigurationError: If it has no `possible_agents`.
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


def _new_key(name: str, taken: EnvironmentSpaces, agent_policies: AgentPolicies) -> str:
    # Neither a "/" nor a ".": the one divides paths into an observation, the other the names of a policy's arrays.
    whole = re.sub(r"[/.]", "_", str(name))
    key = re.sub(r"_?\d+$", "", whole) if agent_policies == "shared" else whole
    return key if key and key not in taken else whole
