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
    """Identifies an agent.

    Attributes:
        substep_key: The key of the agent's spaces and policy.
        agent_index: The agent's number among the agents with this key, from 0.
    """

    substep_key: str
    agent_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of an episode for one agent.

    Attributes:
        observation: The agent's last observation.
        truncated: True: the episode was cut off, and the value of the last observation replaces later rewards. False:
            the episode terminated.
    """

    observation: NestedObservation
    truncated: bool = False


class Executed(NamedTuple):
    """An agent's last action as the environment executed it.

    Attributes:
        action: The executed action, in the dtype and shape of the action space; None: the action that was sent.
        chosen_by: The name of the player that chose the action in place of the policy. Empty: no name; the policy chose
            the action if the executed action equals the sent action.
    """

    action: NDArray[Any] | None
    chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The results of the last actions, and the agents that act next.

    Attributes:
        observations: The observation of each agent that acts now. All these agents act together. Empty: the episode is
            over.
        rewards: Each agent's reward for the last actions of all agents. Until its next observation, an agent's rewards
            count for its last action. An agent without an entry has a reward of 0.
        ended: The agents whose episode has ended in this turn. They do not act again before a reset.
        infos: Further values by agent.
        events: Statistics of the events of an episode that is over. The vector environment sets this, not the
            environment.
        is_dropped: True: the environment raised an exception, so the results of the last actions are unknown. The
            vector environment sets this, too.
        executed: The executed actions of agents, if they may differ from the policy's actions. Set for environments
            that dial in.
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

    A substep key identifies a kind of action, such as a move or a purchase. The `n_agents` agents of a key share spaces
    and policy. One agent may have several keys, for kinds of actions that alternate. Agents that act together are in
    the same turn. Each agent's episode may end separately. When no agent acts any more, every agent that has acted must
    have ended.

    One thread at a time calls an environment.

    Attributes:
        spaces: The spaces by substep key.
    """

    spaces: EnvironmentSpaces

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode.

        Args:
            seed: Seeds the environment's random generators; None: the generators continue.
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

    def agent_name(self, actor: ActorId) -> str:
        """Returns the name of an agent for people; by default its substep key and its index, such as `"walker/1"`."""
        return f"{actor.substep_key}/{actor.agent_index}"

    def layers(self) -> Iterator[object]:
        """Yields this environment and its parts, outermost first; rollcast records the events of each `FiresEvents`."""
        yield self

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Frees the environment's resources. Idempotent."""


class AdaptedEnv(StructuredEnv):
    """A structured environment that wraps an environment of another kind.

    Args:
        env: The other environment; closed by `close`.
        spaces: The spaces by substep key.
    """

    def __init__(self, env: Any, spaces: EnvironmentSpaces) -> None:  # noqa: ANN401 - of any library
        self._env = env
        self.spaces = spaces

    def layers(self) -> Iterator[object]:
        """Yields this adapter, the environment's wrappers, and the environment."""
        yield self
        yield from wrapped_layers(self._env)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class SingleAgentEnv(AdaptedEnv):
    """A gymnasium environment as a structured environment with one substep, `FLAT_SUBSTEP`, and one agent.

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
