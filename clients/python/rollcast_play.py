"""Connects environments to rollcast: sends their spaces and observations, and receives actions.

This module needs `pip install grpcio protobuf`, and the folder `proto/rollcast` beside this file. With
`pip install xxhash`, both sides detect messages that were damaged in transit.
"""

import queue
import random
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

try:
    import xxhash
except ImportError:
    xxhash = None

from rollcast.v1 import environment_pb2 as api
from rollcast.v1.space_pb2 import Box, Discrete, Space, SubstepSpaces
from rollcast.v1.tensor_pb2 import DATA_TYPE_FLOAT32, Tensor

RUNNING, TERMINATED = api.AGENT_STATE_RUNNING, api.AGENT_STATE_TERMINATED
INTERRUPTED, REWARDED = api.AGENT_STATE_INTERRUPTED, api.AGENT_STATE_REWARDED
METHOD = "/rollcast.v1.EnvironmentService/Play"
# The key of `digest`, the last field of a message, and the bytes of the field.
DIGEST_KEY, N_DIGEST_BYTES = b"\x71", 9
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# Attempts to get a name that is taken, before the client has played.
NAME_TRIES = 6
# Detects a lost server after 20 s. Without the last option, gRPC waits a minute for the answer to a ping.
OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]


class Environment(Protocol):
    """Your environment. A turn has an entry for each agent with news: an observation, a reward, or an end."""

    def reset(self, seed: int | None) -> api.EnvironmentTurn:
        """Begins an episode. The first episode of a stream gets a seed. Some agents of the turn are RUNNING."""

    def step(self, actions: Sequence[api.AgentAction]) -> api.EnvironmentTurn:
        """Plays until agents need actions or the episode is over. At the end, no agent of the turn is RUNNING."""


class DamagedError(Exception):
    """A message of the server was damaged in transit."""


class Player:
    """Plays environments until training ends. If the connection is lost, it reconnects and begins new episodes.

    Args:
        environments: The environments of this client; all have the same spaces.
        substeps: The spaces of the environments. An ordinary environment has one substep, with the key "0".
        name: The client's name in logs; empty: the server chooses one.
        episodes: The number of episodes to play; 0: until training ends.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        substeps: Sequence[SubstepSpaces],
        *,
        name: str = "",
        episodes: int = 0,
    ) -> None:
        self._environments = environments
        self._hello = api.Hello(protocol=1, client=name, substeps=substeps, n_envs=len(environments))
        self._episodes = episodes
        self._n_ended = 0
        self._max_message_bytes = 0
        self._pause_s = FIRST_PAUSE_S
        self._has_played = False
        self._n_name_taken = 0
        self._is_over = False

    def play(self, address: str, *, token: str = "", root_certificates: bytes | None = None) -> str:
        """Plays until the end. Returns the reason of the end, as a sentence.

        Args:
            address: Host and port of the server.
            token: A token of the role `actor`, if the server has tokens.
            root_certificates: PEM of the authority that signed the server's certificate; None: no TLS.

        Raises:
            grpc.RpcError: The server refuses this client; `details()` has the reason.
        """
        metadata = [("authorization", f"Bearer {token}")] if token else []
        while True:
            try:
                with _channel(address, root_certificates) as channel:
                    why = self._play_stream(channel.stream_stream(METHOD), metadata)
            except DamagedError as error:
                why = f"UNAVAILABLE: {error}"
            except grpc.RpcError as error:
                # A lost connection of this process, or of the previous one, may still hold the name.
                is_taken = error.code() is grpc.StatusCode.ALREADY_EXISTS
                self._n_name_taken += is_taken
                may_be_ours = is_taken and (self._has_played or self._n_name_taken < NAME_TRIES)
                if error.code() is not grpc.StatusCode.UNAVAILABLE and not may_be_ours:
                    raise
                why = f"{error.code().name}: {error.details()}"
            if self._is_over:
                return why
            print(f"{why}; trying again within {self._pause_s} s", file=sys.stderr, flush=True)
            time.sleep(self._pause_s * random.uniform(0.5, 1.0))  # so that clients do not reconnect all at once
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _play_stream(self, play: grpc.StreamStreamMultiCallable, metadata: list[tuple[str, str]]) -> str:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(_sealed(api.PlayRequest(hello=self._hello).SerializeToString()))
        has_digests = False
        try:
            for message in play(iter(requests.get, None), metadata=metadata):
                response = _parsed(message, needs_digest=has_digests)
                has_digests = bool(response.digest)
                if response.HasField("farewell"):
                    self._is_over = response.farewell.training_ended
                    return response.farewell.reason
                if self._is_over:
                    continue  # actions that the server sent before it received our end
                turns = self._begin(response.welcome) if response.HasField("welcome") else self._step(response.actions)
                for request in self._requests(turns):
                    requests.put(_sealed(request.SerializeToString()))
                if self._episodes and self._n_ended >= self._episodes:
                    self._is_over = True
                    requests.put(None)  # closes our side; the server then closes its own
        finally:
            requests.put(None)
        self._is_over = True
        return f"{self._n_ended} episodes played"

    def _begin(self, welcome: api.Welcome) -> list[api.EnvironmentTurn]:
        self._hello.client = welcome.client  # it reconnects under this name
        self._max_message_bytes = welcome.max_message_bytes
        return [self._turn(number, self._environments[number].reset(seed)) for number, seed in enumerate(welcome.seeds)]

    def _step(self, actions: api.Actions) -> list[api.EnvironmentTurn]:
        self._has_played, self._pause_s = True, FIRST_PAUSE_S
        turns = []
        for each in actions.environments:
            environment = self._environments[each.environment]
            turns.append(self._turn(each.environment, environment.step(each.agents)))
            if all(agent.state != RUNNING for agent in turns[-1].agents):
                self._n_ended += 1
                turns.append(self._turn(each.environment, environment.reset(None)))
        return turns

    def _requests(self, turns: Sequence[api.EnvironmentTurn]) -> Iterator[api.PlayRequest]:
        """Divides turns among messages within the server's size limit."""
        request = api.PlayRequest(turns=api.Turns(turns=turns))
        if request.ByteSize() + N_DIGEST_BYTES <= self._max_message_bytes or len(turns) == 1:
            yield request
            return
        half = len(turns) // 2
        yield from self._requests(turns[:half])
        yield from self._requests(turns[half:])

    @staticmethod
    def _turn(number: int, turn: api.EnvironmentTurn) -> api.EnvironmentTurn:
        turn.environment = number
        return turn


def _sealed(message: bytes) -> bytes:
    """Appends the digest of a message. Without xxhash, returns the message itself."""
    return message if xxhash is None else message + DIGEST_KEY + xxhash.xxh3_64_digest(message)[::-1]


def _parsed(message: bytes, *, needs_digest: bool) -> api.PlayResponse:
    """Parses a message of the server, and compares it with its digest. The server sends digests only in answer to ours.

    Raises:
        DamagedError: The message was damaged in transit.
    """
    try:
        response = api.PlayResponse.FromString(message)
    except DecodeError as error:
        raise DamagedError(f"a message was damaged in transit: it does not parse ({error})") from error
    if xxhash is not None and (needs_digest or response.digest) and _sealed(message[:-N_DIGEST_BYTES]) != message:
        raise DamagedError("a message was damaged in transit: its digest does not match")
    return response


def single_turn(
    observation: Sequence[float], *, reward: float = 0.0, state: int = RUNNING, **values: float
) -> api.EnvironmentTurn:
    """Returns a turn of one agent that observes a vector. `values` are statistics of the episode."""
    agent = api.AgentTurn(state=state, observation=[_floats(observation)], reward=reward)
    named = [api.EpisodeValue(name=name, value=value) for name, value in values.items()]
    return api.EnvironmentTurn(agents=[agent], episode_values=named)


def box(low: Sequence[float], high: Sequence[float]) -> Space:
    """Returns the space of a vector of float32 with these bounds."""
    shape = [len(low)]
    bounds = [Tensor(dtype=DATA_TYPE_FLOAT32, shape=shape, data=_floats(bound)) for bound in (low, high)]
    return Space(box=Box(low=bounds[0], high=bounds[1], shape=shape))


def discrete(n: int) -> Space:
    """Returns the space of the integers 0 to n - 1."""
    return Space(discrete=Discrete(n=n))


def integer(action: api.AgentAction) -> int:
    """Returns the action in a discrete space."""
    return int.from_bytes(action.action, "little", signed=True)


def _floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _channel(address: str, root_certificates: bytes | None) -> grpc.Channel:
    if root_certificates is None:
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates), OPTIONS)
