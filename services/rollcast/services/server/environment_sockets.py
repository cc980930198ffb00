"""Serves `EnvironmentService.Play` over WebSockets, for clients without gRPC, such as browsers."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

from google.rpc import status_pb2
from grpc_status import rpc_status
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK
from websockets.http11 import Request, Response

from rollcast.services.address import Address
from rollcast.services.environments.play import EnvironmentPlay
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES
from rollcast.services.security.bearer import Metadata, with_token
from rollcast.services.security.credentials import server_context
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.admission import Admission
from rollcast.services.server.listening import Listening

_METHOD: Final = "/rollcast.v1.EnvironmentService/Play"
# The close code of an error is this number plus the gRPC code. RFC 6455 reserves 4000 to 4999 for applications.
_FIRST_CODE: Final = 4000
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 2.0
_PING_INTERVAL_S: Final = 10.0
# The number of a client's waiting messages from which the server stops reading its connection.
_MAX_QUEUE: Final = 2

# The origin of a connection in the system's format: host, port, and more with IPv6.
_Where: TypeAlias = Any


class EnvironmentSockets:
    """The WebSockets of a server of environments. Each binary frame is a message. Only the event loop uses it.

    A client passes the same checks as a call over gRPC. It is half open from the acceptance of its connection, before
    TLS, until its first message. It may send its token as `?token=`, because a page cannot set headers. Any page in a
    browser can dial an address of the browser's machine, so without tokens only pages of this machine may connect.

    Args:
        address: The host and port to serve.
        security: TLS and tokens for clients.
        admission: The checks.
        play: Serves the environments of a client.
        opens: The actions that anyone may take at an address without TLS and tokens, for the log.
        max_connections: The largest number of connections; the server closes further connections.
        silence_s: Seconds that a connection may leave a ping unanswered.
    """

    def __init__(
        self,
        address: Address,
        security: ServerSecurity,
        admission: Admission,
        play: EnvironmentPlay,
        *,
        opens: str,
        max_connections: int,
        silence_s: float,
    ) -> None:
        self._address = address
        self._security = security
        self._admission = admission
        self._play = play
        self._max_connections = max_connections
        self._silence_s = silence_s
        self._listening = Listening(address, security, opens)
        self._streams: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        # The connections without a first message, by descriptor. A connection counts as half open until its stack is
        # closed.
        self._half_open: dict[int, contextlib.ExitStack] = {}
        self._servers: list[Server] = []

    @property
    def address(self) -> str:
        """The served address, with the real port in place of port 0.

        Raises:
            NotReadyError: The server has not started.
        """
        return self._listening.address

    async def start(self) -> None:
        """Starts to listen and serve.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The server cannot listen at the address for another reason, or cannot use the TLS files.
        """
        tls = self._security.tls
        context = None if tls is None else server_context(tls)
        # The library would log every client that disconnects without a close frame.
        silent = logging.getLogger(f"{__name__}.library")
        silent.setLevel(logging.CRITICAL)
        with self._listening.binding():
            listeners = _listeners(self._address, self._accepted)
        for listener in listeners:
            server = await serve(
                self._serve,
                sock=listener,
                process_request=self._answer_at_once,
                ssl=context,
                compression=None,  # observations are small, or are images
                server_header=None,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=_MAX_QUEUE,
                open_timeout=_HANDSHAKE_TIMEOUT_S,
                close_timeout=_CLOSE_TIMEOUT_S,
                ping_interval=_PING_INTERVAL_S,
                ping_timeout=self._silence_s,
                logger=silent,
            )
            self._servers.append(server)
        self._listening.bound(listeners[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Ends every stream and frees the address.

        Args:
            grace_s: Seconds that streams may take to end.
        """
        if self._streams:
            await asyncio.wait(self._streams, timeout=grace_s)
        for server in self._servers:
            server.close()
        for server in self._servers:
            await server.wait_closed()

    def _accepted(self, connection: "_Connection", where: _Where) -> None:
        """Counts a connection until it ends, and as half open until its first message.

        Raises:
            ConnectionAbortedError: There are too many connections. asyncio closes this connection and accepts the next.
        """
        if len(self._connections) >= self._max_connections:
            connection.close()
            raise ConnectionAbortedError
        loop, descriptor = asyncio.get_running_loop(), connection.fileno()
        self._half_open[descriptor] = stack = contextlib.ExitStack()
        stack.callback(self._half_open.pop, descriptor)
        self._connections.add(connection)

        def closed() -> None:
            self._connections.discard(connection)
            stack.close()

        connection.when_closed = closed

        def cut() -> None:
            loop.call_soon_threadsafe(connection.cut)

        stack.enter_context(self._admission.request(_peer(where), cut, is_large=True))

    def _answer_at_once(self, connection: ServerConnection, request: Request) -> Response | None:
        """Returns a refusal for a connection from a page of another machine; otherwise None."""
        origin = request.headers.get("Origin")
        if origin is not None and self._security.tokens is None and not _is_local(origin):
            return connection.respond(
                HTTPStatus.FORBIDDEN,
                f"a page of {origin} must not dial this server, which has no tokens; expected a page of localhost; "
                "give the server tokens, and the page one of them\n",
            )
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None  # the library makes one for each connection
        self._streams.add(task)
        peer = _peer(connection.remote_address)
        try:
            await self._play_stream(connection, peer)
        except ConnectionClosed:
            pass  # the client has disconnected
        except Exception as error:  # noqa: BLE001  # every error must become a status
            await _refuse(connection, self._admission.status_of(error, _METHOD, peer))
        finally:
            self._streams.discard(task)

    async def _play_stream(self, connection: ServerConnection, peer: str) -> None:
        self._admission.check_token(_METHOD, _metadata(connection))
        self._admission.check_rate(peer)
        loop = asyncio.get_running_loop()

        def cut() -> None:
            loop.call_soon_threadsafe(connection.transport.abort)

        async def receive() -> bytes | None:
            try:
                return await connection.recv(decode=False)
            except ConnectionClosedOK:
                return None

        # -1, and not among them, if it is closed by now
        descriptor = connection.transport.get_extra_info("socket").fileno()
        with self._half_open.get(descriptor, contextlib.ExitStack()):
            first = await receive()
        with self._admission.stream(_METHOD, peer, cut) as place:

            async def send(message: bytes) -> None:
                place.expect("accept a message")
                await connection.send(message)
                place.settle()

            await self._play(receive, send, peer, first=first)


class _Connection(socket.socket):
    """An accepted connection with a callback for its closing. Only its event loop uses it.

    Attributes:
        when_closed: Called before each close.
    """

    when_closed: Callable[[], None] = staticmethod(lambda: None)

    def cut(self) -> None:
        """Ends the connection, so that its transport reads the end of the stream."""
        with contextlib.suppress(OSError):  # it is closed
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        self.when_closed()
        super().close()


class _Listener(socket.socket):
    """A listening socket that reports each connection at once; asyncio would report it after the TLS handshake.

    Attributes:
        accepted: Called with each connection and its origin.
    """

    accepted: Callable[[_Connection, _Where], None]

    def accept(self) -> tuple[_Connection, _Where]:
        """Accepts a connection."""
        plain, where = super().accept()
        connection = _Connection(fileno=plain.detach())
        self.accepted(connection, where)
        return connection, where


def _listeners(address: Address, accepted: Callable[[_Connection, _Where], None]) -> list[_Listener]:
    """Returns a listening socket for each address of a host, because "localhost" may have two.

    Raises:
        OSError: An address cannot be bound.
    """
    listeners, port = [], address.port
    with contextlib.ExitStack() as stack:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            try:
                listener = stack.enter_context(_Listener(family, kind, protocol))
            except OSError:  # an address family that this machine lacks
                continue
            listener.accepted = accepted
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((where[0], port, *where[2:]))
            port = listener.getsockname()[1]  # for port 0, the other addresses use the same port
            listeners.append(listener)
        stack.pop_all()
    return listeners


async def _refuse(connection: ServerConnection, status: status_pb2.Status) -> None:
    """Sends a client the reason for its refusal in a text frame, because a close frame has at most 123 bytes."""
    code = rpc_status.to_status(status).code
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await connection.send(f"{code.name}: {status.message}")
        await connection.close(_FIRST_CODE + status.code)


def _metadata(connection: ServerConnection) -> Metadata:
    """Returns the metadata that a call over gRPC would have."""
    request = connection.request
    assert request is not None  # the handshake is over
    tokens = parse_qs(urlsplit(request.path).query).get("token", [])
    sent = [("authorization", value) for value in request.headers.get_all("Authorization")]
    return [*sent, *(pair for token in tokens for pair in with_token(token))]


def _peer(where: _Where) -> str:
    """Returns a client's address in gRPC's format."""
    host, port, *_ = where
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _is_local(origin: str) -> bool:
    """Returns whether a page is from this machine. Pages from files have the origin "null"."""
    host = urlsplit(origin).hostname
    return host is not None and Address(text=host, host=host).is_local
