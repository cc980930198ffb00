"""Defines structured environments: several agents that act at once or in turns, or one agent with several actions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
from numpy.typing import NDArray

from rollcast.actor.environments.returned_values import checked_flag, checked_reset, checked_reward, checked_step
from rollcast.actor.statistics.wrapper import wrapped_layers
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, NestedObservation, SubstepSpaces


class ActorId(NamedTuple):
    """Names an agent.

    Attributes:
        substep_key: Key of its spaces, and so of its policy.
        agent_index: Its number among the agents that share them, from 0.
    """

    substep_key: str
    agent_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of an episode for one agent.

    Attributes:
        observation: Its last observation.
        truncated: Whether the episode was cut, so that later rewards are estimated from that observation. False: the
            episode terminated.
    """

    observation: NestedObservation
    truncated: bool = False


class Executed(NamedTuple):
    """An agent's last action as it was carried out.

    Attributes:
        action: In the dtype and shape of its space; None: as it was sent.
        chosen_by: Who chose it in place of the policy; empty: the policy, if it is as it was sent.
    """

    action: NDArray[Any] | None
    chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The results of the last actions, and the agents that act next.

    Attributes:
        observations: The observation of each agent that acts now, all of them at once. Empty: the episode is over.
        rewards: The agents' rewards for the last actions, whichever agent took them. An agent's rewards count for its
            last action, until its next observation. Agents that are left out have a reward of 0.
        ended: The agents whose episode has ended in this turn. They do not act again before a reset.
        infos: Further values by agent.
        events: Statistics of the events of an episode that is over. Set by the vector environment, not by the
            environment.
        is_dropped: Whether the environment raised, so that the results of the last actions are unknown. Set by the
            vector environment, too.
        executed: The last actions of agents that may not have been carried out as the policy chose them. Set for
            environments that dial in.
    """

    observations: Mapping[ActorId, NestedObservation]
    rewards: Mapping[ActorId, float] = field(default_factory=dict)
    ended: Mapping[ActorId, Ended] = field(default_factory=dict)
    infos: Mapping[ActorId, Mapping[str, Any]] = field(default_factory=dict)
    events: tuple[EventValue, ...] = ()
    is_dropped: bool = False
    executed: Mapping[ActorId, Executed] = field(default_factory=dict)


class StructuredEnv(ABC):
    """An environment whose steps consist of substeps, each with its own spaces and agents.

        turn = env.reset(seed=7)
        while turn.observations:
            turn = env.step({actor: act(actor, seen) for actor, seen in turn.observations.items()})

    A substep key names a kind of action: of `n_agents` agents that share spaces and policy, or one of several actions
    of one agent (first where to go, then what to take). Agents that act at once are in the same turn. Episodes end
    agent by agent; when no agent acts any more, every agent that has acted must have ended.

    One thread at a time calls it.

    Attributes:
        spaces: The spaces by substep key.
    """

    spaces: EnvironmentSpaces

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode.

        Args:
            seed: Seeds the environment's random generators; None: they continue.
            options: As in gymnasium.

        Returns:
            The first turn.
        """

    @abstractmethod
    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions of a turn.

        Args:
            actions: The action of each agent in the last turn's `observations`.

        Returns:
            The next turn.
        """

    def layers(self) -> Iterator[object]:
        """Yields itself and its parts, from the outside in; rollcast records the events of every `FiresEvents`."""
        yield self

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Frees its resources. Idempotent."""


class AdaptedEnv(StructuredEnv):
    """A structured environment around one of another kind.

    Args:
        env: The other environment; closed by `close`.
        spaces: The spaces by substep key.
    """

    def __init__(self, env: Any, spaces: EnvironmentSpaces) -> None:  # noqa: ANN401 - of any library
        self._env = env
        self.spaces = spaces

    def layers(self) -> Iterator[object]:
        """Yields itself, the environment's wrappers, and the environment."""
        yield self
        yield from wrapped_layers(self._env)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class SingleAgentEnv(AdaptedEnv):
    """A gymnasium environment as a structured one: one substep, `FLAT_SUBSTEP`, and one agent.

    Args:
        env: The environment; closed by `close`.
    """

    ACTOR = ActorId(FLAT_SUBSTEP)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        spaces = SubstepSpaces(observation=env.observation_space, action=env.action_space)
        super().__init__(env, {FLAT_SUBSTEP: spaces})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode; see `StructuredEnv.reset`."""
        observation, info = checked_reset(self._env.reset(seed=seed, options=options))
        return Turn(observations={self.ACTOR: observation}, infos={self.ACTOR: info})

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the action; see `StructuredEnv.step`."""
        observation, reward, terminated, truncated, info = checked_step(self._env.step(actions[self.ACTOR]))
        terminated, truncated = checked_flag(terminated, "terminated"), checked_flag(truncated, "truncated")
        ends = terminated or truncated
        return Turn(
            observations={} if ends else {self.ACTOR: observation},
            rewards={self.ACTOR: checked_reward(reward)},
            ended={self.ACTOR: Ended(observation=observation, truncated=not terminated)} if ends else {},
            infos={self.ACTOR: info},
        )
