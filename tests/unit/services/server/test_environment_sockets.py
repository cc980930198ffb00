"""WebSockets of a server of environments: what crosses them, and who may dial."""

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect as connect_in_a_loop
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rollcast.services.environments.dialled import DialledClient, DialledTurn, EnvironmentActions, Farewell, Hello
from rollcast.services.errors import AddressInUseError
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES, Limits
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.security.tokens import Role, TokenTable
from rollcast.services.server import environment_sockets
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.wire.seal import seal
from rollcast.tools.certificates import make_certificates
from rollcast.v1 import environment_pb2 as api
from tests.bad_line import damaged
from tests.certificates import make_two, server_security_of
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import CARTPOLE_LIKE

pytestmark = pytest.mark.slow


class ActsAtOnce:
    """A sink that answers each turn with action 1."""

    def __init__(self) -> None:
        self.clients: dict[str, DialledClient] = {}
        self.left: dict[str, str] = {}

    def attach(self, look_later: Callable[[float], None]) -> None: ...

    def look(self) -> None: ...

    def open(self, hello: Hello, client: DialledClient) -> None:
        self.clients[client.name] = client
        client.welcome(range(hello.n_envs))

    def take(self, client: DialledClient, turns: Sequence[DialledTurn]) -> None:
        actions = [EnvironmentActions(turn.environment, [np.int64(1)]) for turn in turns if turn.n_running]
        client.answer(actions, policy_version=3, progress=0.5)

    def leave(self, client: DialledClient, reason: str) -> None:
        self.left[client.name] = reason


@pytest.fixture
def sink() -> ActsAtOnce:
    return ActsAtOnce()


Serve = Callable[..., EnvironmentServer]


@pytest.fixture
def serve(sink: ActsAtOnce) -> Iterator[Serve]:
    servers: list[EnvironmentServer] = []

    def start(security: ServerSecurity = PLAIN_SERVER, **options: object) -> EnvironmentServer:
        server = EnvironmentServer("127.0.0.1:0", sink, websocket_address="127.0.0.1:0", security=security, **options)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def dial(server: EnvironmentServer, query: str = "", **options: object) -> AbstractContextManager[ClientConnection]:
    return connect(f"{server.websocket_url}/{query}", open_timeout=DEADLINE_S, **options)


def hello(name: str = "shed", n_envs: int = 1) -> bytes:
    offer = api.Hello(protocol=1, client=name, n_envs=n_envs, substeps=environment_spaces_to_proto(CARTPOLE_LIKE))
    return api.PlayRequest(hello=offer).SerializeToString()


def turn(environment: int = 0, n_bytes: int = 16) -> bytes:
    agent = api.AgentTurn(state=api.AGENT_STATE_RUNNING, observation=[bytes(n_bytes)])
    turns = api.Turns(turns=[api.EnvironmentTurn(environment=environment, agents=[agent])])
    return api.PlayRequest(turns=turns).SerializeToString()


def answer(socket: ClientConnection) -> api.PlayResponse:
    return api.PlayResponse.FromString(socket.recv(DEADLINE_S, decode=False))


def is_welcome(socket: ClientConnection) -> bool:
    socket.send(hello())
    return answer(socket).welcome.client == "shed"


def close_code(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(DEADLINE_S)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def refusal(socket: ClientConnection) -> tuple[str, int]:
    """Returns the last words of the server, and its close code."""
    said = socket.recv(DEADLINE_S)
    assert isinstance(said, str)
    return said, close_code(socket)


class TestPlay:
    def test_welcome_actions_and_the_end_of_the_client(self, serve: Serve, sink: ActsAtOnce):
        with dial(serve()) as socket:
            socket.send(hello(n_envs=2))
            assert answer(socket).welcome == api.Welcome(
                client="shed", seeds=[0, 1], max_message_bytes=MAX_MESSAGE_BYTES
            )
            socket.send(turn(1))
            actions = answer(socket).actions
            assert (actions.policy_version, actions.progress) == (3, 0.5)
            (acted,) = actions.environments
            assert (acted.environment, acted.agents[0].action) == (1, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        wait_until(lambda: sink.left == {"shed": "it closed its side"}, "the client's end")

    def test_a_farewell_closes_with_1000(self, serve: Serve, sink: ActsAtOnce):
        with dial(serve()) as socket:
            assert is_welcome(socket)
            sink.clients["shed"].end(Farewell(reason="training has ended", training_ended=True))
            assert answer(socket).farewell == api.Farewell(reason="training has ended", training_ended=True)
            assert close_code(socket) == 1000

    def test_a_lost_connection_is_noticed(self, serve: Serve, sink: ActsAtOnce):
        with dial(serve()) as socket:
            assert is_welcome(socket)
            socket.socket.shutdown(2)
            wait_until(lambda: sink.left == {"shed": "its connection was lost"}, "the client's end")

    def test_a_stop_of_the_server_is_another_code_than_a_good_end(self, serve: Serve):
        server = serve()
        with dial(server) as socket:
            assert is_welcome(socket)
            server.stop(grace_s=0)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(DEADLINE_S)
            assert closed.value.rcvd is None or closed.value.rcvd.code == 1001

    def test_messages_are_not_compressed(self, serve: Serve):
        with dial(serve()) as socket:
            assert socket.response is not None
            assert "Sec-WebSocket-Extensions" not in socket.response.headers


class TestDigests:
    def test_a_client_that_sends_digests_gets_them(self, serve: Serve):
        with dial(serve()) as socket:
            for message in (hello(), turn()):
                socket.send(seal(message))
                received = socket.recv(DEADLINE_S, decode=False)
                told = api.PlayResponse.FromString(received)
                told.ClearField("digest")
                assert received == seal(told.SerializeToString())

    def test_a_damaged_message_closes_with_the_code_of_unavailable(self, serve: Serve, sink: ActsAtOnce):
        with dial(serve()) as socket:
            socket.send(seal(hello()))
            assert answer(socket).HasField("welcome")
            socket.send(damaged(seal(turn())))
            said, code = refusal(socket)
        assert said.startswith("UNAVAILABLE: a message was damaged in transit: the digest of its ")
        assert code == 4014
        wait_until(lambda: "shed" in sink.left, "the client's end")

    def test_a_client_without_them_gets_none(self, serve: Serve):
        with dial(serve()) as socket:
            assert is_welcome(socket)
            socket.send(turn())
            assert not answer(socket).digest


class TestErrors:
    def test_an_error_in_the_middle_names_environment_and_agent(self, serve: Serve, sink: ActsAtOnce):
        with dial(serve()) as socket:
            assert is_welcome(socket)
            socket.send(turn(n_bytes=12))
            said, code = refusal(socket)
        assert said.startswith("INVALID_ARGUMENT: client 'shed', environment 0, agent 0")
        assert len(said) > 123, "more than a close frame can say"
        assert code == 4003
        wait_until(lambda: "shed" in sink.left, "the client's end")

    @pytest.mark.parametrize("message", [b"\xff\xff", "hello"])
    def test_what_is_no_message_is_refused(self, serve: Serve, message: bytes | str):
        with dial(serve()) as socket:
            socket.send(message)
            said, code = refusal(socket)
        assert said.startswith("INVALID_ARGUMENT: ")
        assert code == 4003

    def test_a_message_that_is_too_large_closes_with_1009(self, serve: Serve):
        with dial(serve()) as socket:
            assert is_welcome(socket)
            socket.send(bytes(MAX_MESSAGE_BYTES + 1))
            assert close_code(socket) == 1009


class TestTokens:
    SECURITY = ServerSecurity(tokens=TokenTable({"a" * 32: Role.ACTOR, "v" * 32: Role.VIEWER}))

    @pytest.mark.parametrize(
        ("query", "options"),
        [
            ("?token=" + "a" * 32, {}),
            ("", {"additional_headers": {"Authorization": "Bearer " + "a" * 32}}),
            ("?token=" + "a" * 32, {"origin": "https://games.example.org"}),
        ],
        ids=["query", "header", "page of another machine"],
    )
    def test_a_token_opens(self, serve: Serve, query: str, options: dict[str, object]):
        with dial(serve(self.SECURITY), query, **options) as socket:
            assert is_welcome(socket)

    @pytest.mark.parametrize(
        ("query", "said", "code"),
        [
            ("", "UNAUTHENTICATED: ", 4016),
            ("?token=" + "b" * 32, "UNAUTHENTICATED: ", 4016),
            ("?token=" + "a" * 32 + "&token=" + "a" * 32, "UNAUTHENTICATED: ", 4016),
            ("?token=" + "v" * 32, "PERMISSION_DENIED: ", 4007),
        ],
        ids=["none", "unknown", "two", "another role"],
    )
    def test_others_are_refused_before_they_say_anything(self, serve: Serve, query: str, said: str, code: int):
        with dial(serve(self.SECURITY), query) as socket:
            told, told_code = refusal(socket)
        assert told.startswith(said)
        assert told_code == code

    def test_a_token_is_needed_beside_a_unix_socket_which_needs_none(self, sink, tmp_path: Path):
        address = f"unix:{tmp_path / 'play'}"
        with EnvironmentServer(address, sink, websocket_address="127.0.0.1:0", security=self.SECURITY) as server:
            with dial(server) as socket:
                assert refusal(socket)[1] == 4016
            with dial(server, "?token=" + "a" * 32) as socket:
                assert is_welcome(socket)


class TestPages:
    @pytest.mark.parametrize("origin", ["http://localhost:8000", "http://127.0.0.1", "http://[::1]:80"])
    def test_pages_of_this_machine_may_dial(self, serve: Serve, origin: str):
        with dial(serve(), origin=origin) as socket:
            assert is_welcome(socket)

    @pytest.mark.parametrize("origin", ["https://games.example.org", "null", "http://localhost.example.org"])
    def test_other_pages_are_refused_without_tokens(self, serve: Serve, origin: str):
        with pytest.raises(InvalidStatus) as refused, dial(serve(), origin=origin):
            pass
        assert refused.value.response.status_code == 403
        assert b"give the server tokens" in (refused.value.response.body or b"")


class TestTls:
    @staticmethod
    def trusting(folder: Path, *, has_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        if has_certificate:
            context.load_cert_chain(folder / "actor.pem", folder / "actor.key")
        return context

    @staticmethod
    def welcomed(server: EnvironmentServer, context: ssl.SSLContext, name: str) -> bool:
        """Dials from one thread: two threads of the other client read and write, which Python's TLS may not survive."""

        async def is_welcome() -> bool:
            async with (
                asyncio.timeout(DEADLINE_S),
                connect_in_a_loop(
                    f"{server.websocket_url}/", ssl=context, server_hostname="localhost", open_timeout=DEADLINE_S
                ) as socket,
            ):
                await socket.send(hello(name))
                return api.PlayResponse.FromString(await socket.recv(decode=False)).welcome.client == name

        return asyncio.run(is_welcome())

    def test_a_replaced_certificate_affects_new_connections(self, serve: Serve, tmp_path: Path):
        keys = make_two(tmp_path)
        server = serve(server_security_of(keys / "in_use", without=("tls_client_ca", "tokens_file")))
        assert str(server.websocket_url).startswith("wss://")
        assert self.welcomed(server, self.trusting(keys / "first"), "a")
        shutil.copy(keys / "second/server.pem", keys / "in_use/server.pem")  # its key has not come yet
        assert self.welcomed(server, self.trusting(keys / "first"), "b")
        shutil.copy(keys / "second/server.key", keys / "in_use/server.key")
        assert self.welcomed(server, self.trusting(keys / "second"), "c")
        with pytest.raises(ssl.SSLCertVerificationError):
            self.welcomed(server, self.trusting(keys / "first"), "d")

    def test_mutual_tls_refuses_clients_without_a_certificate(self, serve: Serve, tmp_path: Path):
        make_certificates(tmp_path)
        server = serve(server_security_of(tmp_path, without=("tokens_file",)))
        assert self.welcomed(server, self.trusting(tmp_path, has_certificate=True), "a")
        with pytest.raises((OSError, InvalidMessage, ConnectionClosed)):
            self.welcomed(server, self.trusting(tmp_path), "b")


class TestHalfOpenConnections:
    """Connections count as half-open calls from before TLS until the first message."""

    @pytest.fixture(autouse=True)
    def _long_handshakes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leaves the ends to the limits: on a busy machine, a test lasts longer than a handshake may."""
        monkeypatch.setattr(environment_sockets, "_HANDSHAKE_TIMEOUT_S", DEADLINE_S)

    @staticmethod
    def silent(stack: contextlib.ExitStack | contextlib.AsyncExitStack, server: EnvironmentServer) -> socket.socket:
        port = int(str(server.websocket_url).rpartition(":")[2])
        return stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))

    @pytest.fixture
    def half_way(self, serve: Serve, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., object]:
        """Returns what serves with limits, and how honest clients dial there."""
        if request.param == "plain":
            return lambda limits: (serve(limits=limits), {})
        make_certificates(tmp_path)
        security = server_security_of(tmp_path, without=("tls_client_ca", "tokens_file"))
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        return lambda limits: (serve(security, limits=limits), {"ssl": context, "server_hostname": "localhost"})

    @pytest.mark.parametrize("half_way", ["plain", "TLS"], indirect=True)
    def test_one_too_many_ends_the_oldest_of_its_address(self, half_way: Callable[..., object]):
        server, options = half_way(Limits(max_half_open_calls_per_host=3, stalled_stream_s=DEADLINE_S))

        async def play_beside_silent_ones() -> None:
            async with contextlib.AsyncExitStack() as stack:
                silent = [self.silent(stack, server) for _ in range(3)]
                # The fourth is honest: it is let in, and counts no more once it has said hello.
                for name in ("a", "b", "c"):
                    playing = await stack.enter_async_context(
                        connect_in_a_loop(f"{server.websocket_url}/", open_timeout=DEADLINE_S, **options)
                    )
                    await playing.send(hello(name))
                    assert api.PlayResponse.FromString(await playing.recv(decode=False)).welcome.client == name
                assert silent[0].recv(1) == b""
                silent += [self.silent(stack, server) for _ in range(3)]
                assert [one.recv(1) for one in silent[1:3]] == [b"", b""]

        # In a loop, not by threads: see `TestTls.welcomed`.
        asyncio.run(play_beside_silent_ones())

    @pytest.mark.parametrize("half_way", ["plain", "TLS"], indirect=True)
    def test_one_that_leaves_or_sends_rubbish_counts_no_more(self, half_way: Callable[..., object]):
        server, _ = half_way(Limits(max_half_open_calls_per_host=2, stalled_stream_s=DEADLINE_S))
        with contextlib.ExitStack() as stack:
            silent = self.silent(stack, server)
            for rubbish in (b"", b"rubbish\r\n\r\n", b"", b"rubbish\r\n\r\n"):
                with contextlib.ExitStack() as leaves:
                    left = self.silent(leaves, server)
                    left.sendall(rubbish)
                    left.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(ConnectionResetError):
                        while left.recv(100):
                            pass
                wait_until(lambda: len(server._sockets._half_open) == 1, "the end of the connection")
            silent.settimeout(0)
            with pytest.raises(BlockingIOError):  # it is still open
                silent.recv(1)

    def test_an_address_may_open_so_many_streams_a_second(self, serve: Serve):
        server = serve(limits=Limits(calls_per_second_per_host=0.1))
        with dial(server) as first:
            assert is_welcome(first)
            with dial(server) as second:
                said, code = refusal(second)
                assert (said.startswith("RESOURCE_EXHAUSTED: 127.0.0.1 made more than"), code) == (True, 4008)

    def test_one_above_the_connections_is_closed_at_once(self, serve: Serve):
        server = serve(limits=Limits(max_connections=2, stalled_stream_s=DEADLINE_S))
        with dial(server) as playing, contextlib.ExitStack() as stack:
            assert is_welcome(playing)
            silent = self.silent(stack, server)
            for _ in range(3):
                assert self.silent(stack, server).recv(1) == b""
            playing.send(turn())
            assert answer(playing).HasField("actions")
            silent.close()

            def is_let_in() -> bool:
                with contextlib.suppress(ConnectionClosed, InvalidMessage, OSError), dial(server) as another:
                    another.send(hello("another"))
                    return answer(another).welcome.client == "another"
                return False

            wait_until(is_let_in, "the place of the one that has left")

    @pytest.mark.parametrize("half_way", ["plain", "TLS"], indirect=True)
    def test_a_silent_one_is_ended_in_time(self, half_way: Callable[..., object]):
        server, _ = half_way(Limits(stalled_stream_s=0.2))
        with contextlib.ExitStack() as stack:
            assert self.silent(stack, server).recv(1) == b""

    def test_one_without_a_first_message_is_ended_in_time(self, serve: Serve):
        server = serve(limits=Limits(stalled_stream_s=0.2))
        # the handshake itself may take as long on a busy machine
        with pytest.raises((ConnectionClosed, InvalidMessage, OSError)), dial(server) as playing:
            playing.recv(DEADLINE_S)


class TestAddress:
    def test_each_address_of_a_name_is_served_at_one_port(self, sink: ActsAtOnce, monkeypatch: pytest.MonkeyPatch):
        both = [
            (family, *rest)
            for host in ("127.0.0.1", "127.0.0.2")
            for family, *rest in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        ]
        server = EnvironmentServer("127.0.0.1:0", sink, websocket_address="localhost:0")
        with contextlib.ExitStack() as stack:
            with monkeypatch.context() as patched:
                patched.setattr(environment_sockets.socket, "getaddrinfo", lambda *_args, **_options: both)
                stack.enter_context(server)
            for host in ("127.0.0.1", "127.0.0.2"):
                with connect(str(server.websocket_url).replace("localhost", host), open_timeout=DEADLINE_S) as playing:
                    assert is_welcome(playing)

    def test_an_address_in_use_is_refused(self, serve: Serve, sink: ActsAtOnce):
        taken = str(serve().websocket_url).removeprefix("ws://")
        server = EnvironmentServer("127.0.0.1:0", sink, websocket_address=taken)
        with pytest.raises(AddressInUseError, match="in use"):
            server.start()
