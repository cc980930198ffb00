"""Takes the address of a gRPC server, and gives it back: its options, TLS, a free port, a unix socket."""

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

# Below KEEPALIVE_TIME_MS of the clients, or their connections die with too_many_pings.
MIN_PING_INTERVAL_MS: Final = KEEPALIVE_TIME_MS // 2
# Time for TLS and the first frames of HTTP/2, after which a connection is closed; gRPC's default is two minutes.
_HANDSHAKE_TIMEOUT_MS: Final = 10_000
# A server needs these to find dead connections, and to accept the pings of our clients.
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
    """The address of one server, with threads or with an event loop.

    Args:
        address: The address to serve.
        security: TLS and tokens for clients that come over TCP.
        opens: What anyone may do who reaches the address where it has neither TLS nor tokens, for the log.
    """

    def __init__(self, address: Address, security: ServerSecurity, opens: str) -> None:
        self._address = address
        self._security = security
        self._opens = opens
        self._port: int | None = None
        self._socket_inode: int | None = None

    @property
    def port(self) -> int:
        """The port that is served; 0 for a unix socket.

        Raises:
            NotReadyError: The server has not been started.
        """
        if self._port is None:
            raise NotReadyError("the server has no port yet; expected a started server; call start() first")
        return self._port

    @property
    def address(self) -> str:
        """The address that is served, with the real port if 0 was asked for.

        Raises:
            NotReadyError: The server has not been started.
        """
        if self._address.path is not None:
            return self._address.text
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{host}:{self.port}"

    def bind(self, server: grpc.Server | grpc.aio.Server) -> None:
        """Takes the address for a server; it serves once it starts.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The address cannot be taken for another reason, or the TLS files cannot be used.
        """
        # File modes decide who may open a unix socket.
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
        """Checks that the address can be taken, while it is taken by other means than `bind`.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The address cannot be taken for another reason.
        """
        check_bindable(self._address)
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise AddressInUseError(
                f"the address {self._address.text!r} could not be bound: {error}; expected it to be free; another "
                "process may have taken it this moment: try again or choose another"
            ) from error

    def bound(self, port: int) -> None:
        """Notes that the address was taken, and warns if anyone can read what travels.

        Args:
            port: The real port; 0 for a unix socket.
        """
        self._port = port
        if self._security.tls is None and not self._address.is_local:
            _warn_of_open_door(self.address, self._security.tokens is not None, self._opens)

    def remove_socket(self) -> None:
        """Removes the unix socket, unless another server has put its own there."""
        path = self._address.path
        with contextlib.suppress(FileNotFoundError):
            if path is not None and path.lstat().st_ino == self._socket_inode:
                path.unlink()


@functools.cache  # once for each address: a learner that waits for its first actor serves there twice
def _warn_of_open_door(address: str, has_tokens: bool, opens: str) -> None:
    _log.warning(
        "%s is served without TLS: anyone on the network path can read everything, %s",
        address,
        "including tokens" if has_tokens else f"and anyone who reaches it {opens}",
    )
