"""Binds and frees the address of a gRPC server: options, TLS, a free port, a unix socket."""

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Final

import grpc

from rollcast.services.address import Address
from rollcast.services.client.channel import COMMON_OPTIONS, KEEPALIVE_TIME_MS
from rollcast.services.errors import AddressInUseError, NotReadyError
from rollcast.services.security.credentials import server_credentials
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.binding import check_bindable

_log = logging.getLogger(__name__)

# Below the clients' KEEPALIVE_TIME_MS, otherwise their connections end with too_many_pings.
MIN_PING_INTERVAL_MS: Final = KEEPALIVE_TIME_MS // 2
# Time for TLS and the first frames of HTTP/2, after which a connection is closed; gRPC's default is two minutes.
_HANDSHAKE_TIMEOUT_MS: Final = 10_000
# The options with which a server finds dead connections, and accepts the pings of rollcast's clients.
KEEPALIVE_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *COMMON_OPTIONS,
    # The value of GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, which, unlike the name, lacks "recv".
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
)
SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # Otherwise a second learner could silently share the port.
    ("grpc.so_reuseport", 0),
    *KEEPALIVE_OPTIONS,
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
)


class Listening:
    """The address of one threaded or asyncio server.

    Args:
        address: The address to serve.
        security: TLS and tokens for clients over TCP.
        opens: The actions that anyone may take at an address without TLS and tokens, for the log.
    """

    def __init__(self, address: Address, security: ServerSecurity, opens: str) -> None:
        self._address = address
        self._security = security
        self._opens = opens
        self._port: int | None = None
        self._socket_inode: int | None = None

    @property
    def port(self) -> int:
        """The served port; 0 for a unix socket.

        Raises:
            NotReadyError: The server has not been started.
        """
        if self._port is None:
            raise NotReadyError("the server has no port yet; expected a started server; call start() first")
        return self._port

    @property
    def address(self) -> str:
        """The served address, with the real port in place of port 0.

        Raises:
            NotReadyError: The server has not been started.
        """
        if self._address.path is not None:
            return self._address.text
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{host}:{self.port}"

    def bind(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Binds the address for a server. Serving begins when the server starts.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The server cannot listen at the address for another reason, or cannot use the TLS files.
        """
        # File modes control the access to a unix socket.
        tls = None if self._address.path is not None else self._security.tls
        credentials = None if tls is None else server_credentials(tls)
        with self.binding():
            if credentials is None:
                port = server.add_insecure_port(self._address.text)
            else:
                port = server.add_secure_port(self._address.text, credentials)
        if self._address.path is not None:
            self._socket_inode = self._address.path.lstat().st_ino
        self.bound(port if self._address.path is None else 0)

    @contextlib.contextmanager
    def binding(self) -> Iterator[None]:
        """Checks the address, while the `with` block binds it by other means than `bind`.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The server cannot listen at the address for another reason.
        """
        check_bindable(self._address)
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise AddressInUseError(
                f"the address {self._address.text!r} could not be bound: {error}; expected it to be free; another "
                "process may have just taken it: try again or choose another"
            ) from error

    def bound(self, port: int) -> None:
        """Notes that the address is bound, and logs a warning if anyone can read the traffic.

        Args:
            port: The real port; 0 for a unix socket.
        """
        self._port = port
        if self._security.tls is None and not self._address.is_local:
            _warn_of_open_door(self.address, self._security.tokens is not None, self._opens)

    def remove_socket(self) -> None:
        """Removes the unix socket, unless another server has replaced it."""
        path = self._address.path
        with contextlib.suppress(FileNotFoundError):
            if path is not None and path.lstat().st_ino == self._socket_inode:
                path.unlink()


@functools.cache  # once for each address, because a learner that waits for its first actor serves at its address twice
def _warn_of_open_door(address: str, has_tokens: bool, opens: str) -> None:
    _log.warning(
        "%s is served without TLS: anyone on the network path can read everything, %s",
        address,
        "including tokens" if has_tokens else f"and anyone who reaches it {opens}",
    )
