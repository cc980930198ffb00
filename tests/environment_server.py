"""A server of EnvironmentService that plays scripts against a client: one script for each stream that it opens."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import grpc
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from rollcast.v1 import environment_pb2 as api
from rollcast.v1.environment_pb2_grpc import EnvironmentServiceServicer, add_EnvironmentServiceServicer_to_server


class Transport(Protocol):
    """The server's side of one stream."""

    authorization: str | None

    async def read(self) -> api.PlayRequest | None:
        """Returns the next message; None if the client has closed its side."""

    async def write(self, response: api.PlayResponse) -> None:
        """Sends a message."""

    async def refuse(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the stream with an error."""


class Stream:
    """One stream, as a script sees it.

    Attributes:
        hello: The client's first message, once `greet` has read it.
        authorization: The client's header of this name.
        held: Turns that were read, but not asked for yet.
    """

    def __init__(self, transport: Transport, cut: Callable[[], None]) -> None:
        self.hello = api.Hello()
        self.authorization = transport.authorization
        self.held: list[api.EnvironmentTurn] = []
        self.refuse = transport.refuse
        self.cut = cut
        self._transport = transport

    async def greet(
        self,
        *,
        seeds: tuple[int, ...] = (1, 2, 3, 4),
        chosen_name: str = "client-7",
        max_message_bytes: int = 1 << 20,
    ) -> None:
        """Reads `hello`, and answers with `welcome`."""
        request = await self._transport.read()
        assert request is not None
        assert request.WhichOneof("kind") == "hello", request
        self.hello = request.hello
        self._max_message_bytes = max_message_bytes
        welcome = api.Welcome(client=self.hello.client or chosen_name, max_message_bytes=max_message_bytes)
        welcome.seeds.extend(seeds[: self.hello.n_envs])
        await self._transport.write(api.PlayResponse(welcome=welcome))

    async def turns(self, n_turns: int) -> list[api.EnvironmentTurn]:
        """Returns the next turns, whatever messages bring them; fails if the client ends before."""
        while len(self.held) < n_turns:
            request = await self._transport.read()
            assert request is not None, f"the client ended after {len(self.held)} of {n_turns} turns"
            assert request.WhichOneof("kind") == "turns", request
            assert request.ByteSize() <= self._max_message_bytes, request
            self.held += request.turns.turns
        taken, self.held = self.held[:n_turns], self.held[n_turns:]
        return taken

    async def act(self, actions: dict[int, int]) -> None:
        """Sends an action of CartPole to some environments, in one message."""
        environments = [
            api.EnvironmentActions(environment=number, agents=[api.AgentAction(action=action.to_bytes(8, "little"))])
            for number, action in actions.items()
        ]
        response = api.PlayResponse(actions=api.Actions(environments=environments, policy_version=3, progress=0.5))
        await self._transport.write(response)

    async def say_farewell(self, reason: str, *, training_ended: bool = True) -> None:
        """Sends the last message."""
        farewell = api.Farewell(reason=reason, training_ended=training_ended)
        await self._transport.write(api.PlayResponse(farewell=farewell))

    async def closed(self) -> None:
        """Waits until the client closes its side; fails if it sends anything before."""
        assert not self.held
        request = await self._transport.read()
        assert request is None, request


Script = Callable[[Stream], Awaitable[None]]


class ScriptedServer:
    """Plays scripts against a client, behind a proxy that can cut connections.

    Args:
        scripts: One for each stream that the client is to open, in this order.
        port: The port that the client dials; it is free until the server is entered.
        over_websockets: Whether clients come over WebSockets, and not over gRPC.

    Attributes:
        address: The address that the client is given.
    """

    def __init__(self, scripts: tuple[Script, ...], port: int, *, over_websockets: bool = False) -> None:
        self.address = f"{'ws://' if over_websockets else ''}127.0.0.1:{port}"
        self._port = port
        self._over_websockets = over_websockets
        self._scripts = list(scripts)
        self._failures: list[BaseException] = []
        self._opened: list[asyncio.StreamWriter] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            port = await self._listen(stack)

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
                self._opened += [writer, inner_writer]
                with contextlib.suppress(OSError):
                    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

            proxy = await asyncio.start_server(forward, "127.0.0.1", self._port)
            stack.callback(self._cut)
            stack.callback(proxy.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def check(self) -> None:
        """Raises what a script has raised; fails if the client opened fewer streams than there are scripts."""
        if self._failures:
            raise self._failures[0]
        assert not self._scripts, f"{len(self._scripts)} streams were never opened"

    async def _listen(self, stack: contextlib.AsyncExitStack) -> int:
        if self._over_websockets:
            sockets = await stack.enter_async_context(serve(self._play_socket, "127.0.0.1", 0, compression=None))
            return int(next(iter(sockets.sockets)).getsockname()[1])
        # the clients' pings come more often than gRPC likes
        server = grpc.aio.server(options=[("grpc.http2.min_ping_interval_without_data_ms", 1000)])
        add_EnvironmentServiceServicer_to_server(_Servicer(self.play), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stack.push_async_callback(server.stop, None)
        return port

    async def play(self, transport: Transport) -> None:
        """Plays the next script."""
        try:
            assert self._scripts, "the client opened one stream too many"
            await self._scripts.pop(0)(Stream(transport, self._cut))
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            self._failures.append(error)
            await transport.refuse(grpc.StatusCode.INTERNAL, f"the script failed: {error!r}")

    async def _play_socket(self, connection: ServerConnection) -> None:
        with contextlib.suppress(_RefusedError, ConnectionClosed):
            await self.play(_SocketTransport(connection))

    def _cut(self) -> None:
        for writer in self._opened:
            writer.transport.abort()
        self._opened.clear()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(65536):
        writer.write(some)
        await writer.drain()
    writer.close()


class _Servicer(EnvironmentServiceServicer):
    def __init__(self, play: Callable[[Transport], Awaitable[None]]) -> None:
        self._play = play

    async def Play(self, request_iterator: object, context: Any) -> None:  # noqa: N802 - gRPC's name
        await self._play(_GrpcTransport(context))


class _GrpcTransport:
    def __init__(self, context: Any) -> None:
        self.authorization = dict(context.invocation_metadata()).get("authorization")
        self.write = context.write
        self.refuse = context.abort
        self._context = context

    async def read(self) -> api.PlayRequest | None:
        request = await self._context.read()
        return None if request is grpc.aio.EOF else request


class _RefusedError(Exception):
    pass


class _SocketTransport:
    def __init__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        (token,) = parse_qs(urlsplit(connection.request.path).query).get("token", [None])
        self.authorization = f"Bearer {token}" if token else connection.request.headers.get("Authorization")
        self._connection = connection

    async def read(self) -> api.PlayRequest | None:
        try:
            message = await self._connection.recv(decode=False)
        except ConnectionClosedOK:
            return None
        return api.PlayRequest.FromString(message)

    async def write(self, response: api.PlayResponse) -> None:
        with contextlib.suppress(ConnectionClosedOK):
            await self._connection.send(response.SerializeToString())

    async def refuse(self, code: grpc.StatusCode, details: str) -> NoReturn:
        await self._connection.send(f"{code.name}: {details}")
        await self._connection.close(4000 + code.value[0])
        raise _RefusedError
