"""Defines the messages of clients with environments as values, and both sides of their streams as protocols."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from rollcast.services.errors import RollcastError
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation

# The version of environment.proto.
PLAY_PROTOCOL = 1


class AgentState(enum.Enum):
    """The state of an agent in a turn; as `rollcast.v1.AgentState` documents it."""

    RUNNING = 1
    TERMINATED = 2
    INTERRUPTED = 3
    REWARDED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client's offer, checked.

    Attributes:
        client: Its name; empty: it has none.
        spaces: The spaces of each of its environments, by substep key.
        n_envs: The number of its environments, at least 1.
        software: The program that dials in, for logs.
    """

    client: str
    spaces: EnvironmentSpaces
    n_envs: int
    software: str = ""


class AgentTurn(NamedTuple):
    """The part of a turn about one agent. A tuple, for its speed.

    Attributes:
        substep_key: The key of its substep.
        agent_index: Its number among the agents of the substep.
        state: Whether it acts now, or its episode has ended.
        observation: `[...]` for every leaf, by path, read-only; empty if the state is REWARDED.
        reward: The sum of its rewards since its last action; finite.
        executed_action: Its last action as it was carried out, in the dtype and shape of its space, read-only; None:
            as it was sent.
        chosen_by: Who chose that action in place of the policy; empty: the policy, if it is as it was sent.
    """

    substep_key: str
    agent_index: int
    state: AgentState
    observation: Observation
    reward: float
    executed_action: NDArray[Any] | None = None
    chosen_by: str = ""


class DialledTurn(NamedTuple):
    """The events in an environment since its last actions.

    Attributes:
        environment: Its number among the environments of the client.
        agents: The agents for which something has happened; the episode is over if none is RUNNING.
        events: Statistics of an episode that is over.
    """

    environment: int
    agents: tuple[AgentTurn, ...]
    events: tuple[EventValue, ...] = ()

    @property
    def n_running(self) -> int:
        """The number of agents that need an action."""
        return sum(agent.state is AgentState.RUNNING for agent in self.agents)


class EnvironmentActions(NamedTuple):
    """The actions of one environment.

    Attributes:
        environment: Its number among the environments of the client.
        actions: The action, in the dtype and shape of its space, of each agent that was RUNNING in the last turn, in
            that order.
    """

    environment: int
    actions: Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """The reason why no more actions come, for a stream that ends well.

    Attributes:
        reason: The reason, as a sentence.
        training_ended: False: the client may try again later.
    """

    reason: str
    training_ended: bool


class DialledClient(Protocol):
    """A client with environments, as those that act see it. Any thread may call; nothing blocks."""

    @property
    def name(self) -> str:
        """Its name, which no other client has now."""

    def welcome(self, seeds: Sequence[int]) -> None:
        """Lets it begin.

        Args:
            seeds: A seed for each of its environments.
        """

    def answer(self, actions: Sequence[EnvironmentActions], *, policy_version: int, progress: float) -> None:
        """Sends the actions of some of its environments, each of which has asked for them.

        Args:
            actions: The actions.
            policy_version: The policy that chose them; -1: none did.
            progress: The progress of training in [0, 1].
        """

    def end(self, reason: RollcastError | Farewell) -> None:
        """Ends its stream. The sink need not wait for `leave`: no more turns of it count.

        Args:
            reason: The error to end it with, or a farewell.
        """


class EnvironmentSink(Protocol):
    """Takes what clients with environments send. The server's one thread calls it, so nothing may block."""

    def open(self, hello: Hello, client: DialledClient) -> None:
        """Takes a client, which waits until it is welcome.

        Args:
            hello: Its offer. The client's name is in `client`.
            client: The client.

        Raises:
            RollcastError: It is refused; `leave` is not called then.
        """

    def take(self, client: DialledClient, turns: Sequence[DialledTurn]) -> None:
        """Takes turns of a client, in the order in which they came.

        Raises:
            RollcastError: A turn is refused, which ends the stream.
        """

    def leave(self, client: DialledClient, reason: str) -> None:
        """Notes that a client is gone. Called once for each client that was opened.

        Args:
            client: The client.
            reason: Why, in words.
        """
