"""Checks the order of a client's messages: a state machine without threads, clocks and gRPC."""

from rollcast.services.environments.codec import EpisodeValueNames, TurnCodec, hello_from_proto
from rollcast.services.environments.dialled import AgentState, DialledTurn, Hello
from rollcast.services.errors import InvalidTurnError, MissingMessageError
from rollcast.v1 import environment_pb2

# Substep key and index of an agent.
Agent = tuple[str, int]


class _Episode:
    """The state of one environment.

    Attributes:
        asking: The agents that wait for an action, in the order of the turn; empty: the environment may send a turn.
        acted: The agents that have acted in this episode and have not ended.
        ended: The agents that have ended in this episode.
        has_begun: False before the first turn of an episode.
    """

    __slots__ = ("acted", "asking", "ended", "has_begun")

    def __init__(self) -> None:
        self.asking: tuple[Agent, ...] = ()
        self.acted: set[Agent] = set()
        self.ended: set[Agent] = set()
        self.has_begun = False


class DialledStream:
    """Checks and decodes the messages of one client, in order.

    Invariants: at most one turn of an environment waits for actions. Each turn gets one action for each RUNNING agent.
    An agent that has ended does not act again in the same episode. An episode ends when no agent is RUNNING; by then,
    every agent that has acted has ended. So at most two turns of an environment are in transit.

    Args:
        names: The names of episodes' values.
    """

    def __init__(self, names: EpisodeValueNames) -> None:
        self._names = names
        self._hello: Hello | None = None
        self._episodes: dict[int, _Episode] = {}

    def hello(self, request: environment_pb2.PlayRequest) -> Hello:
        """Takes the first message.

        Raises:
            MissingMessageError: The message is of another kind.
            InvalidInputError, InvalidSpaceError, ProtocolMismatchError: See `hello_from_proto`.
        """
        if request.WhichOneof("kind") != "hello":
            raise MissingMessageError(
                f"the first message is {_kind(request)}; expected hello, with the client's spaces; send it first"
            )
        self._hello = hello_from_proto(request.hello)
        return self._hello

    def named(self, client: str) -> None:
        """Notes the client's name, for error messages. From now on, the client may send turns."""
        assert self._hello is not None  # hello comes first
        self._codec = TurnCodec(client, self._hello.spaces, self._names)

    def turns(self, request: environment_pb2.PlayRequest) -> tuple[DialledTurn, ...]:
        """Takes a later message.

        Returns:
            Its turns, in order.

        Raises:
            InvalidTurnError: The message has no turns, or a turn breaks a rule. The message of the error identifies the
                environment and the agent.
            InvalidTensorError: An observation does not fit its space, or has a forbidden value.
            LimitExceededError: The clients use too many names of episodes' values.
        """
        turns = request.turns.turns[:]
        if not turns:
            raise InvalidTurnError(
                f"client {self._codec.client!r} sent {_kind(request)} after hello; expected turns, at least one; open "
                "another stream to change spaces or environments"
            )
        return tuple(map(self._turn, turns))

    def answer(self, environment: int) -> tuple[Agent, ...]:
        """Notes that the server sends the actions of an environment.

        Returns:
            The agents that receive the actions, in order: all agents that were RUNNING in the last turn.
        """
        episode = self._episodes[environment]
        asking, episode.asking = episode.asking, ()
        episode.acted.update(asking)
        return asking

    @property
    def codec(self) -> TurnCodec:
        """The codec of the client's turns and actions."""
        return self._codec

    def _turn(self, proto: environment_pb2.EnvironmentTurn) -> DialledTurn:
        assert self._hello is not None  # hello comes first
        environment = proto.environment
        if environment >= self._hello.n_envs:
            raise InvalidTurnError(
                f"{self._codec.where(environment)}: there is no such environment; expected a number below "
                f"{self._hello.n_envs}, which is hello.n_envs; correct it"
            )
        episode = self._episodes.get(environment)
        if episode is None:
            episode = self._episodes[environment] = _Episode()
        if episode.asking:
            raise InvalidTurnError(
                f"{self._codec.where(environment)}: a turn arrived before the actions for the last one were sent; "
                "expected at most one turn that waits for actions; wait for the answer"
            )
        turn = self._codec.turn(proto)
        running, ended = [], []
        for key, agent, state, _observation, reward, executed_action, chosen_by in turn.agents:
            self._check_agent(episode, environment, key, agent, state, reward)
            if executed_action is not None or chosen_by:
                self._check_acted(episode, environment, key, agent)
            if state is AgentState.RUNNING:
                running.append((key, agent))
            elif state is not AgentState.REWARDED:
                ended.append((key, agent))
        episode.ended.update(ended)
        episode.acted.difference_update(ended)
        if running:
            self._check_no_values(turn, environment)
            episode.asking, episode.has_begun = tuple(running), True
        else:
            self._check_end(episode, environment)
            self._episodes[environment] = _Episode()
        return turn

    def _check_agent(
        self, episode: _Episode, environment: int, key: str, agent: int, state: AgentState, reward: float
    ) -> None:
        if (key, agent) not in episode.ended:
            return
        where = self._codec.where(environment, key, agent)
        if state is not AgentState.REWARDED:
            raise InvalidTurnError(
                f"{where}: it is {state.name}, but it has ended in this episode; expected no entry for it before the "
                "episode of the environment is over; omit it"
            )
        if reward:
            raise InvalidTurnError(
                f"{where}: it gets a reward of {reward}, but it has ended in this episode; expected its last reward in "
                "the turn that ends it; omit it"
            )

    def _check_acted(self, episode: _Episode, environment: int, key: str, agent: int) -> None:
        if (key, agent) not in episode.acted:
            raise InvalidTurnError(
                f"{self._codec.where(environment, key, agent)}: it has an executed_action or chosen_by, but has not "
                "acted in this episode; expected them only after an action; omit them"
            )

    def _check_no_values(self, turn: DialledTurn, environment: int) -> None:
        if turn.events:
            raise InvalidTurnError(
                f"{self._codec.where(environment)}: a turn has episode_values, but its episode is not over; expected "
                "them when no agent is RUNNING; send them with the last turn"
            )

    def _check_end(self, episode: _Episode, environment: int) -> None:
        if not episode.has_begun:
            raise InvalidTurnError(
                f"{self._codec.where(environment)}: no agent is RUNNING in the first turn of an episode; expected at "
                "least one; send the first turn when an agent has to act"
            )
        if episode.acted:
            left = sorted(episode.acted)[:16]
            raise InvalidTurnError(
                f"{self._codec.where(environment)}: no agent is RUNNING, but {left} have acted in the episode and not "
                "ended; expected the last observation of each, with TERMINATED or INTERRUPTED; send them in this turn"
            )


def _kind(request: environment_pb2.PlayRequest) -> str:
    return request.WhichOneof("kind") or "empty"
