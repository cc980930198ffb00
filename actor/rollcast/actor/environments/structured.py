"""Structured environments: several agents, who act in turns, at once, or in several ways."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium

from rollcast.actor.environments.returned_values import checked_flag, checked_reset, checked_reward, checked_step
from rollcast.actor.statistics.wrapper import wrapped_layers
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, NestedObservation, SubstepSpaces


class ActorId(NamedTuple):
    """Who acts.

    Attributes:
        substep_key: Which spaces, and so which policy, are its own.
        agent_index: Which of the agents that share them, from 0.
    """

    substep_key: str
    agent_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an episode ended for one agent.

    Attributes:
        observation: The last it saw.
        truncated: The episode was cut: its value goes on from that observation. False: nothing follows.
    """

    observation: NestedObservation
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of the last actions, and who acts next.

    Attributes:
        observations: What each agent sees that has to act now, all of them at once. Empty: the episode is over.
        rewards: What agents have earned by the last actions, whoever took them. An agent's rewards count for its last
            action, until it sees something again. Those that are left out have earned nothing.
        ended: Agents for whom the episode has ended in this turn. They do not act again before a reset.
        infos: What else the environment has to say of an agent.
        events: What came of the events that were fired in an episode that is over. Not the environment's to fill in:
            whoever steps it listens to them.
        is_dropped: The environment has raised, and what came of the last actions will never be known; likewise.
    """

    observations: Mapping[ActorId, NestedObservation]
    rewards: Mapping[ActorId, float] = field(default_factory=dict)
    ended: Mapping[ActorId, Ended] = field(default_factory=dict)
    infos: Mapping[ActorId, Mapping[str, Any]] = field(default_factory=dict)
    events: tuple[EventValue, ...] = ()
    is_dropped: bool = False


class StructuredEnv(ABC):
    """An environment in which one step consists of several substeps, each taken by an `ActorId`.

        turn = env.reset(seed=7)
        while turn.observations:
            turn = env.step({actor: act(actor, seen) for actor, seen in turn.observations.items()})

    A substep key stands for a kind of actor: agents that share spaces and policy (`n_agents` of them), or one agent
    that acts in several ways, first where to go and then what to take. Agents that act at once are in one turn;
    those that take turns are in turns of their own. Episodes end agent by agent; when nobody is to act any more, every
    agent that has acted must have ended.

    One thread at a time calls it.

    Attributes:
        spaces: The spaces by substep key.
    """

    spaces: EnvironmentSpaces

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        """Begins an episode.

        Args:
            seed: Of everything random in it from now on; None: go on with the generators as they are.
            options: As of gymnasium.

        Returns:
            The first turn: who acts, and sees what.
        """

    @abstractmethod
    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        """Takes the actions of a turn.

        Args:
            actions: One of each agent that is in the last turn's `observations`.

        Returns:
            The next turn.
        """

    def layers(self) -> Iterator[object]:
        """Itself and what it is made of, from the outside in: who of them is a `FiresEvents` is listened to."""
        yield self

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Frees what it holds; calling it again does nothing."""


class SingleAgentEnv(StructuredEnv):
    """A gymnasium environment as a structured one: one substep, `FLAT_SUBSTEP`, and one agent.

    Args:
        env: The environment; closed by `close`.
    """

    ACTOR = ActorId(FLAT_SUBSTEP)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=env.observation_space, action=env.action_space)}

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

    def layers(self) -> Iterator[object]:
        """Itself, the environment's wrappers, and the environment."""
        yield self
        yield from wrapped_layers(self._env)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()
