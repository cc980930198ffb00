"""Defines the messages of clients with environments, and the interfaces of both sides of their streams."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from rollcast.services.errors import RollcastError
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation

# The version of environment.proto.
PLAY_PROTOCOL = 1


class AgentState(enum.Enum):
    """The state of an agent in a turn; `rollcast.v1.AgentState` documents it."""

    RUNNING = 1
    TERMINATED = 2
    INTERRUPTED = 3
    REWARDED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client's checked offer.

    Attributes:
        client: The client's name; empty: no name.
        spaces: The spaces of each environment, by substep key.
        n_envs: The number of environments, at least 1.
        software: The program that dials in, for logs.
    """

    client: str
    spaces: EnvironmentSpaces
    n_envs: int
    software: str = ""


class AgentTurn(NamedTuple):
    """One agent's part of a turn. It is a tuple for speed.

    Attributes:
        substep_key: The key of the agent's substep.
        agent_index: The agent's number within the substep.
        state: The agent's state, for example that it needs an action or that its episode has ended.
        observation: `[...]` for every leaf, by path, read-only; empty if the state is REWARDED.
        reward: The sum of the agent's rewards since its last action; finite.
        executed_action: The action that the environment executed last, in the dtype and shape of the space, read-only.
            None: the sent action.
        chosen_by: The source that chose this action in place of the policy. Empty: the policy chose it, if it equals
            the sent action.
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
        agents: The agents with a new state or reward. If no agent is RUNNING, the episode is over.
        events: The statistics of an ended episode.
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
        actions: One action for each agent that was RUNNING in the last turn, in the turn's order. An action has the
            dtype and shape of its space.
    """

    environment: int
    actions: Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """The reason for the end of a stream that ends without an error.

    Attributes:
        reason: The reason, as a sentence.
        training_ended: True: training has ended. False: the client may try again later.
    """

    reason: str
    training_ended: bool


class DialledClient(Protocol):
    """The acting code's view of a client with environments. Any thread may call its methods; none of them blocks."""

    @property
    def name(self) -> str:
        """The client's name, unique among the connected clients."""

    def welcome(self, seeds: Sequence[int]) -> None:
        """Allows the client to begin.

        Args:
            seeds: A seed for each of the client's environments.
        """

    def answer(self, actions: Sequence[EnvironmentActions], *, policy_version: int, progress: float) -> None:
        """Sends the actions of some of the client's environments, all of which wait for actions.

        Args:
            actions: The actions.
            policy_version: The version of the policy that chose the actions; -1: no policy.
            progress: The progress of training in [0, 1].
        """

    def end(self, reason: RollcastError | Farewell) -> None:
        """Ends the client's stream. The sink need not wait for `leave`: it receives no more turns from this client.

        Args:
            reason: The error for the client, or a farewell.
        """


class EnvironmentSink(Protocol):
    """Receives the messages of clients with environments. Only the server's thread calls it, so no method may block."""

    def attach(self, look_later: Callable[[float], None]) -> None:
        """Takes the means to use the server's thread without a message of a client. Called once, before all others.

        Args:
            look_later: Makes the server's thread call `look` at a time of `time.monotonic`, at once if that is past.
                Safe from any thread. The earliest time of several counts.
        """

    def look(self) -> None:
        """Decides again, as `attach` has arranged."""

    def open(self, hello: Hello, client: DialledClient) -> None:
        """Takes a client, which then waits for `DialledClient.welcome`.

        Args:
            hello: The client's offer. `client` has the client's name.
            client: The client.

        Raises:
            RollcastError: The sink refuses the client. The server then does not call `leave`.
        """

    def take(self, client: DialledClient, turns: Sequence[DialledTurn]) -> None:
        """Takes turns of a client, in order of arrival.

        Raises:
            RollcastError: The sink refuses a turn. The server then ends the stream.
        """

    def leave(self, client: DialledClient, reason: str) -> None:
        """Notes that a client has disconnected. Called once for each opened client.

        Args:
            client: The client.
            reason: The reason, as text.
        """
