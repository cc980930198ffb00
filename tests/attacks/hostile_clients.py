"""Clients that pay nothing: calls without a request, rollouts that are declared and never sent, openings of nobody."""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Final

import grpc
import numpy as np

from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.spaces.spaces import EnvironmentSpaces, space_leaves
from rollcast.services.version import software_version
from rollcast.v1 import relay_pb2, rollout_pb2
from tests.rollouts import build_rollout

# The first bytes of every client of HTTP/2.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_REFUSED: Final = b"\0\0\0\7"
_PAUSE_S: Final = 0.01
_STREAM: Final = "/rollcast.v1.RolloutService/StreamRollouts"
_BUNDLES: Final = "/rollcast.v1.RelayService/StreamBundles"
_N_OPENINGS: Final = 1000
_JOIN_DEADLINE_S: Final = 20.0
_DECLARE_S: Final = 120.0
# The attacks, each for a process of its own.
N_HOLLOW: Final = 40
METHODS: Final = ("/grpc.health.v1.Health/Check", "/rollcast.v1.LearnerService/GetStatus")


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def _header_block(authority: str, method: str) -> bytes:
    """HPACK, every header as a literal that is not indexed."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode() for name, value in fields.items()
    )


class HalfOpenConnection:
    """One connection with calls of which only the headers are sent; one that is ended is opened again.

    Args:
        methods: Called in turns.
        n_calls: Calls that are open at once.
    """

    def __init__(self, address: str, methods: Sequence[str], n_calls: int) -> None:
        host, _, port = address.rpartition(":")
        self._blocks = [_header_block(address, method) for method in methods]
        self._next_id = 1
        self._over = threading.Event()
        self._socket = socket.create_connection((host, int(port)))
        self._socket.sendall(PREFACE + _frame(_SETTINGS, 0, 0) + b"".join(self._open() for _ in range(n_calls)))
        self._thread = threading.Thread(target=self._serve, name="half-open-calls")
        self._thread.start()

    @property
    def n_opened(self) -> int:
        """Calls that were opened so far."""
        return self._next_id // 2

    def close(self) -> None:
        """Ends the connection."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _open(self) -> bytes:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        return _frame(_HEADERS, _END_HEADERS, stream_id, self._blocks[self.n_opened % len(self._blocks)])

    def _serve(self) -> None:
        ended: set[int] = set()
        with contextlib.suppress(OSError), self._socket.makefile("rb") as stream:
            while len(head := stream.read(9)) == 9:
                size = int.from_bytes(head[:3], "big")
                kind, flags, stream_id = struct.unpack(">BBI", head[3:])
                payload = stream.read(size)
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    self._socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                if kind == _GOAWAY:
                    return
                is_end = kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM)
                if is_end and stream_id not in ended:
                    ended.add(stream_id)
                    if kind == _RST_STREAM and payload == _REFUSED:
                        # by gRPC itself, at no cost: calling again at once would only burn this side's processor
                        self._over.wait(_PAUSE_S)
                    self._socket.sendall(self._open())


@contextlib.contextmanager
def half_open_calls(
    address: str, methods: Sequence[str], *, n_calls: int = 200, n_connections: int = 5
) -> Iterator[list[HalfOpenConnection]]:
    """Keeps calls half open while the body runs: headers, and neither a message nor an end."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(n_connections):
            connections.append(HalfOpenConnection(address, methods, n_calls // n_connections))
            stack.callback(connections[-1].close)
        yield connections


class HollowActor:
    """Joins with many environments, declares a rollout of all of them, sends none of it, and comes again when ended.

    Args:
        offer: Who it says it is.
    """

    def __init__(self, address: str, offer: JoinOffer) -> None:
        self._address = address
        self._offer = offer
        self._over = threading.Event()
        self.has_declared = threading.Event()
        self.n_declared = 0
        self._thread = threading.Thread(target=self._come_again_and_again, name=f"hollow-{offer.actor_id}")
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join()

    def _come_again_and_again(self) -> None:
        with make_channel(self._address) as channel, LearnerClient(self._address, timeout_s=_JOIN_DEADLINE_S) as client:
            while not self._over.is_set():
                with contextlib.suppress(grpc.RpcError, RollcastError):
                    self._declare(channel, client)

    def _declare(self, channel: grpc.Channel, client: LearnerClient) -> None:
        agreement = client.join(self._offer)
        opening = rollout_pb2.OpenStream(actor_id=agreement.actor_id, incarnation=agreement.incarnation)
        header = hollow_header(self._offer.spaces, agreement.n_rollout_steps, self._offer.n_envs)
        header.rollout.actor_id, header.rollout.incarnation = agreement.actor_id, agreement.incarnation
        header.rollout.sequence = agreement.acknowledged_sequence + 1

        def requests() -> Iterator[bytes]:
            yield rollout_pb2.StreamRolloutsRequest(open=opening).SerializeToString()
            yield header.SerializeToString()
            self.n_declared += 1
            self.has_declared.set()
            self._over.wait()

        call = channel.stream_stream(_STREAM)(requests())
        ender = threading.Thread(target=lambda: (self._over.wait(), call.cancel()), daemon=True)
        ender.start()
        for _ in call:
            pass


def hollow_header(spaces: EnvironmentSpaces, n_steps: int, n_envs: int) -> rollout_pb2.StreamRolloutsRequest:
    """The header of a rollout, without any of the bytes that it declares; with no more memory than one step takes."""
    ((key, substep),) = spaces.items()
    ((path, leaf),) = space_leaves(substep.observation).items()

    def zeros(*shape: int, dtype: object) -> np.ndarray:
        # a view: the encoder looks at shape and type only, until the first body is cut
        return np.broadcast_to(np.zeros((), dtype), shape)

    rollout = build_rollout(
        observation={path: zeros(n_steps, n_envs, *leaf.shape, dtype=leaf.dtype)},
        action=zeros(n_steps, n_envs, *substep.action.shape, dtype=substep.action.dtype),
        log_prob=zeros(n_steps, n_envs, dtype=np.float32),
        last_observation={path: zeros(n_envs, *leaf.shape, dtype=leaf.dtype)},
        key=key,
        reward=zeros(n_steps, n_envs, dtype=np.float32),
        terminated=zeros(n_steps, n_envs, dtype=np.bool_),
        truncated=zeros(n_steps, n_envs, dtype=np.bool_),
        env_seeds=(),
    )
    header, _ = RolloutEncoder().head_and_arrays(rollout)
    return rollout_pb2.StreamRolloutsRequest(rollout=rollout_pb2.Rollout.FromString(header))


class HostileRelay:
    """One relay's call that opens streams of actors that never joined, as fast as the learner reads."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self.has_begun = threading.Event()
        self._thread = threading.Thread(target=self._call, name="hostile-relay")
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join()

    def _call(self) -> None:
        with make_channel(self._address) as channel:
            call = channel.stream_stream(_BUNDLES)(self._requests())
            ender = threading.Thread(target=lambda: (self._over.wait(), call.cancel()), daemon=True)
            ender.start()
            with contextlib.suppress(grpc.RpcError):
                for _ in call:
                    self.has_begun.set()

    def _requests(self) -> Iterator[bytes]:
        yield relay_pb2.StreamBundlesRequest(open=rollout_pb2.Relay(relay_id="hostile", nonce=1)).SerializeToString()
        for first in itertools.count(1, _N_OPENINGS):
            if self._over.is_set():
                return
            yield relay_pb2.StreamBundlesRequest(
                parts=[
                    relay_pb2.UpwardPart(stream=number, open=rollout_pb2.OpenStream(actor_id=f"nobody-{number}"))
                    for number in range(first, first + _N_OPENINGS)
                ]
            ).SerializeToString()


def attack(address: str, kinds: Sequence[str], pipe: Connection) -> None:
    """Attacks in this process until the pipe is closed."""
    with contextlib.ExitStack() as stack:
        if "hollow" in kinds:
            hollow: list[HollowActor] = []
            with LearnerClient(address) as client:
                described = client.describe()
            for number in range(N_HOLLOW):
                offer = JoinOffer(
                    actor_id=f"hollow-{number}",
                    process_nonce=number + 1,
                    spaces=described.spaces,
                    n_envs=MAX_ENVS_PER_ACTOR,
                    network=described.policy.network,
                    software_version=software_version(),
                )
                hollow.append(HollowActor(address, offer))
                stack.callback(hollow[-1].close)
            for actor in hollow:
                assert actor.has_declared.wait(_DECLARE_S), "an actor could not join"
        if "relay" in kinds:
            relay = HostileRelay(address)
            stack.callback(relay.close)
            assert relay.has_begun.wait(_DECLARE_S), "the relay was not taken"
        if "half-open" in kinds:
            stack.enter_context(half_open_calls(address, METHODS))
        pipe.send("attacking")
        with contextlib.suppress(EOFError, ConnectionResetError):
            pipe.recv()
