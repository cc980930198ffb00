"""Decodes and checks the messages of clients with environments, and encodes the answers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from rollcast.services.environments.dialled import (
    PLAY_PROTOCOL,
    AgentState,
    AgentTurn,
    DialledTurn,
    Farewell,
    Hello,
)
from rollcast.services.errors import (
    InvalidInputError,
    InvalidTensorError,
    InvalidTurnError,
    LimitExceededError,
    ProtocolMismatchError,
    UnreadableMessageError,
)
from rollcast.services.limits.limits import (
    MAX_ACTOR_ID_LENGTH,
    MAX_ENVS_PER_ACTOR,
    MAX_EPISODE_VALUE_NAMES,
    MAX_NAME_LENGTH,
)
from rollcast.services.limits.texts import quoted, shortened
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue, name_problem
from rollcast.services.spaces.codec import environment_spaces_from_proto
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_action_space_supported, space_leaves
from rollcast.services.wire.message_body import open_field
from rollcast.v1 import environment_pb2

# Rewards are added up and sent as float32, whose largest number is 3.4e38.
MAX_REWARD: Final = 1e30
# Networks and running variances square observations in float32.
MAX_OBSERVATION: Final = 1e18
# Log-probabilities contain the squares of actions, as float32.
MAX_ACTION: Final = 1e9

_STATES: Final = {state.value: state for state in AgentState}


class _Leaf(NamedTuple):
    """A leaf of an observation: its path, its schema, and the bytes of one value."""

    path: str
    schema: LeafSchema
    n_bytes: int


class EpisodeValueNames:
    """The names of the values that the environments of all clients report at the end of episodes.

    The number of names is bounded, because a rollout declares each of them. Only one thread uses this object.
    """

    def __init__(self) -> None:
        self._statistics: dict[str, EventStatistic] = {}

    def statistic(self, name: str, what: str) -> EventStatistic:
        """Returns the statistic with this name.

        Args:
            name: The name.
            what: Describes the turn in messages.

        Raises:
            InvalidTurnError: The name is empty, too long, or not printable.
            LimitExceededError: The clients use too many names.
        """
        known = self._statistics.get(name)
        if known is not None:
            return known
        if not name or (problem := name_problem(name)) is not None:
            raise InvalidTurnError(
                f"{what}: the name of an episode's value is {problem if name else repr(name)}; expected 1 to "
                f"{MAX_NAME_LENGTH} printable characters; rename it"
            )
        if len(self._statistics) >= MAX_EPISODE_VALUE_NAMES:
            raise LimitExceededError(
                f"{what}: {quoted(name)} exceeds the {MAX_EPISODE_VALUE_NAMES} names of episodes' values of all "
                "clients; expected no further name; report numbers under fixed names",
                limit="max_episode_value_names",
            )
        statistic = EventStatistic(event=name, name="", epoch=(EpochStatistic(name="", reduction="mean"),))
        self._statistics[name] = statistic
        return statistic


def request_from_bytes(serialized: bytes) -> environment_pb2.PlayRequest:
    """Parses a message of a client.

    Raises:
        UnreadableMessageError: The bytes do not parse.
    """
    try:
        return environment_pb2.PlayRequest.FromString(serialized)
    except DecodeError as error:
        raise UnreadableMessageError(
            f"{len(serialized)} received bytes do not parse as a rollcast.v1.PlayRequest ({error}); expected one; see "
            "environment.proto"
        ) from error


def hello_from_proto(proto: environment_pb2.Hello) -> Hello:
    """Decodes and checks the first message of a client.

    Raises:
        ProtocolMismatchError: The client speaks another version.
        InvalidInputError: A field is invalid.
        InvalidSpaceError: A space is malformed, or no policy can act in it.
    """
    if proto.protocol != PLAY_PROTOCOL:
        raise ProtocolMismatchError(
            f"the client {quoted(proto.client)} speaks version {proto.protocol} of EnvironmentService; expected "
            f"{PLAY_PROTOCOL}; use a client of this release, or set hello.protocol"
        )
    name = proto.client
    if len(name.encode()) > MAX_ACTOR_ID_LENGTH or not name.isprintable():
        raise InvalidInputError(
            f"the client's name {quoted(name)} cannot be used; expected at most {MAX_ACTOR_ID_LENGTH} bytes of "
            "printable characters; correct hello.client"
        )
    if proto.n_envs > MAX_ENVS_PER_ACTOR:
        raise InvalidInputError(
            f"the client {quoted(name)} has {proto.n_envs} environments; expected at most {MAX_ENVS_PER_ACTOR}; "
            "correct hello.n_envs"
        )
    spaces = environment_spaces_from_proto(proto.substeps)
    for key, substep in spaces.items():
        space_leaves(substep.observation)
        check_action_space_supported(substep.action, where=f"substep {key!r} of the client {quoted(name)}")
    return Hello(
        client=name,
        spaces=spaces,
        n_envs=max(proto.n_envs, 1),
        software=shortened(proto.software, MAX_NAME_LENGTH),
    )


class TurnCodec:
    """Decodes the turns of one client's environments, and encodes their actions.

    Args:
        client: The client's name, for messages.
        spaces: The spaces of the client's environments, in the order of `hello`.
        names: The names of episodes' values.
    """

    def __init__(self, client: str, spaces: EnvironmentSpaces, names: EpisodeValueNames) -> None:
        self.client = client
        self._names = names
        self._keys = tuple(spaces)
        self._numbers = {key: number for number, key in enumerate(spaces)}
        self._n_agents = tuple(substep.n_agents for substep in spaces.values())
        self._leaves = tuple(_leaves_of(substep.observation) for substep in spaces.values())
        self._actions = {key: _leaves_of(substep.action)[0] for key, substep in spaces.items()}
        self._action_dtypes = {key: leaf.schema.dtype.newbyteorder("<") for key, leaf in self._actions.items()}
        # From `_head`, for each agent that has acted.
        self._heads: dict[tuple[str, int], bytes] = {}

    def turn(self, proto: environment_pb2.EnvironmentTurn) -> DialledTurn:
        """Decodes and checks a turn, except the order of turns.

        Raises:
            InvalidTurnError: The turn contains an unknown agent, contains an agent twice, or breaks another rule.
            InvalidTensorError: An observation does not fit its space, or has a forbidden value.
            LimitExceededError: The clients use too many names of episodes' values.
        """
        environment = proto.environment
        # A slice is a list, which is several times as fast to iterate as protobuf's container.
        agents = tuple([self._agent(agent, environment) for agent in proto.agents[:]])
        if len(agents) > 1 and len({(agent.substep_key, agent.agent_index) for agent in agents}) != len(agents):
            raise InvalidTurnError(
                f"{self.where(environment)}: a turn names an agent twice; expected each at most once; send one entry "
                "for each agent"
            )
        if not proto.episode_values:
            return DialledTurn(environment, agents)
        if len({value.name for value in proto.episode_values}) != len(proto.episode_values):
            raise InvalidTurnError(
                f"{self.where(environment)}: a turn has a name of an episode's value twice; expected each at most "
                "once; send one number for each name"
            )
        events = tuple(self._event(value, environment) for value in proto.episode_values)
        return DialledTurn(environment, agents, events)

    def where(self, environment: int, substep_key: str = "", agent_index: int = 0) -> str:
        """Describes an environment, or an agent in it, for messages."""
        agent = f", agent {agent_index} of substep {quoted(substep_key)}" if substep_key else ""
        return f"client {self.client!r}, environment {environment}{agent}"

    def actions(self, environment: int, agents: Sequence[tuple[str, int]], actions: Iterable[NDArray[Any]]) -> bytes:
        """Encodes the actions of an environment as a serialised `EnvironmentActions`.

        An action's size is known from its space, so its bytes only need to follow those of the same agent.

        Args:
            environment: The environment's number.
            agents: Substep key and index of each agent.
            actions: The agents' actions.
        """
        pieces = (
            [environment_pb2.EnvironmentActions(environment=environment).SerializeToString()] if environment else []
        )
        for agent, action in zip(agents, actions, strict=True):
            head = self._heads.get(agent)
            if head is None:
                head = self._heads[agent] = self._head(*agent)
            content = np.asarray(action, self._action_dtypes[agent[0]]).tobytes()
            assert len(content) == self._actions[agent[0]].n_bytes, "an action of another size than its space"
            pieces += head, content
        return b"".join(pieces)

    def _head(self, key: str, agent: int) -> bytes:
        """Returns an agent's entry in a serialised `EnvironmentActions`, up to the first byte of its action."""
        n_bytes = self._actions[key].n_bytes
        head = environment_pb2.AgentAction(substep=self._numbers[key], agent=agent).SerializeToString()
        head = open_field(head, environment_pb2.AgentAction.ACTION_FIELD_NUMBER, n_bytes)
        number = environment_pb2.EnvironmentActions.AGENTS_FIELD_NUMBER
        return open_field(b"", number, len(head) + n_bytes) + head

    def _agent(self, proto: environment_pb2.AgentTurn, environment: int) -> AgentTurn:
        number, agent = proto.substep, proto.agent
        if number >= len(self._keys) or agent >= self._n_agents[number]:
            known = dict(zip(self._keys[:16], self._n_agents, strict=False))
            raise InvalidTurnError(
                f"{self.where(environment)}: a turn names agent {agent} of substep number {number}; expected one of "
                f"hello, which has these substeps, with the number of agents of each: {known}; correct the number"
            )
        key = self._keys[number]
        state = _STATES.get(proto.state)
        if state is None:
            raise InvalidTurnError(
                f"{self.where(environment, key, agent)}: its state is {proto.state}; expected one of "
                f"{[f'{known.name} = {known.value}' for known in AgentState]}; set it"
            )
        if not abs(proto.reward) <= MAX_REWARD:
            raise InvalidTurnError(
                f"{self.where(environment, key, agent)}: its reward is {proto.reward}; expected a number from "
                f"{-MAX_REWARD:g} to {MAX_REWARD:g}; find its source in the environment"
            )
        sent, leaves = proto.observation[:], self._leaves[number]
        if state is AgentState.REWARDED:
            if sent:
                raise InvalidTurnError(
                    f"{self.where(environment, key, agent)}: it has {len(sent)} leaves of an observation, but its "
                    "state is REWARDED; expected none, or another state; omit the observation"
                )
            return AgentTurn(key, agent, state, {}, proto.reward, *self._executed(proto, environment, key))
        if len(sent) != len(leaves):
            raise InvalidTensorError(
                f"{self.where(environment, key, agent)}: its observation has {len(sent)} leaves; expected "
                f"{len(leaves)}, one for each of {[leaf.path for leaf in leaves[:16]]}; send them in this order"
            )
        observation = {}
        for leaf, content in zip(leaves, sent, strict=True):
            what = f"its observation at {leaf.path!r}" if leaf.path else "its observation"
            observation[leaf.path] = self._leaf(leaf, content, what, MAX_OBSERVATION, environment, key, agent)
        return AgentTurn(key, agent, state, observation, proto.reward, *self._executed(proto, environment, key))

    def _executed(
        self, proto: environment_pb2.AgentTurn, environment: int, key: str
    ) -> tuple[()] | tuple[NDArray[Any] | None, str]:
        """Returns the executed action and the source that chose it; an empty tuple if the policy chose it."""
        if not proto.executed_action and not proto.chosen_by:
            return ()
        agent = proto.agent
        if problem := name_problem(proto.chosen_by):
            raise InvalidTurnError(
                f"{self.where(environment, key, agent)}: its chosen_by is {problem}; expected at most "
                f"{MAX_NAME_LENGTH} printable characters; shorten it"
            )
        if not proto.executed_action:
            return None, proto.chosen_by
        what = "its executed_action"
        action = self._leaf(self._actions[key], proto.executed_action, what, MAX_ACTION, environment, key, agent)
        return action, proto.chosen_by

    def _leaf(
        self, leaf: _Leaf, content: bytes, what: str, largest: float, environment: int, key: str, agent: int
    ) -> NDArray[Any]:
        schema = leaf.schema
        if len(content) != leaf.n_bytes:
            raise InvalidTensorError(
                f"{self.where(environment, key, agent)}: {what} has {len(content)} bytes; "
                f"expected {leaf.n_bytes}, which is {schema.dtype}{list(schema.shape)}; send it in the dtype and shape "
                "of the space"
            )
        values: NDArray[Any] = np.ndarray(schema.shape, schema.dtype, content)
        is_float = schema.dtype.kind == "f"
        # One pass over the values, since every turn comes here. NaN is not in the range, either.
        if is_float and float(np.abs(values).max(initial=0.0)) <= largest:
            return values
        if schema.is_checked:
            try:
                schema.check_values(values, what=what, axes=())
            except InvalidTensorError as error:
                raise InvalidTensorError(f"{self.where(environment, key, agent)}: {error}") from error
        if is_float:
            found = values.flat[np.abs(values).argmax()]
            raise InvalidTensorError(
                f"{self.where(environment, key, agent)}: {what} holds {found:g}; expected numbers from {-largest:g} to "
                f"{largest:g}; find its source in the environment"
            )
        return values

    def _event(self, proto: environment_pb2.EpisodeValue, environment: int) -> EventValue:
        where = self.where(environment)
        statistic = self._names.statistic(proto.name, where)
        if not math.isfinite(proto.value):
            raise InvalidTurnError(
                f"{where}: the value {quoted(proto.name)} of its episode is {proto.value}; expected a finite number; "
                "find its source in the environment"
            )
        return EventValue(statistic, (), proto.value)


def welcome_to_bytes(client: str, seeds: Sequence[int], max_message_bytes: int) -> bytes:
    """Encodes the first answer to a client."""
    welcome = environment_pb2.Welcome(client=client, seeds=seeds, max_message_bytes=max_message_bytes)
    return environment_pb2.PlayResponse(welcome=welcome).SerializeToString()


def actions_to_bytes(
    environments: Sequence[bytes], policy_version: int, progress: float, max_message_bytes: int
) -> Iterator[bytes]:
    """Encodes the actions of some environments, from `TurnCodec.actions`.

    Yields one message, or several if one message would be too large. The actions of one environment stay together.
    """
    pieces: list[bytes] = []
    for actions in environments:
        pieces += open_field(b"", environment_pb2.Actions.ENVIRONMENTS_FIELD_NUMBER, len(actions)), actions
    pieces.append(_shared_fields(policy_version, progress))
    content = b"".join(pieces)
    message = open_field(b"", environment_pb2.PlayResponse.ACTIONS_FIELD_NUMBER, len(content)) + content
    if len(message) <= max_message_bytes or len(environments) == 1:
        yield message
        return
    half = len(environments) // 2
    for part in (environments[:half], environments[half:]):
        yield from actions_to_bytes(part, policy_version, progress, max_message_bytes)


@lru_cache(maxsize=1)
def _shared_fields(policy_version: int, progress: float) -> bytes:
    """Returns the serialised fields of `Actions` that all answers of a batch have in common."""
    return environment_pb2.Actions(policy_version=policy_version, progress=progress).SerializeToString()


def farewell_to_bytes(farewell: Farewell) -> bytes:
    """Encodes the last answer to a client."""
    return environment_pb2.PlayResponse(
        farewell=environment_pb2.Farewell(reason=farewell.reason, training_ended=farewell.training_ended)
    ).SerializeToString()


def _leaves_of(space: Any) -> tuple[_Leaf, ...]:  # noqa: ANN401 - gymnasium's spaces are generic
    schemas = {path: leaf_schema(leaf) for path, leaf in space_leaves(space).items()}
    return tuple(
        _Leaf(path, schema, math.prod(schema.shape) * schema.dtype.itemsize) for path, schema in schemas.items()
    )
