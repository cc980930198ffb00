"""Serves metrics over HTTP, in Prometheus' text format."""

import gzip
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self, TypeAlias, cast

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from rollcast.services.address import Address, parse_web_address
from rollcast.services.metrics.families import Families
from rollcast.services.server.binding import check_bindable

logger = logging.getLogger(__name__)

# The server checks every half second whether it must end.
_CLOSE_TIMEOUT_S: Final = 5.0
# The number of requests that are answered concurrently. Each has a thread and a file descriptor.
_MAX_REQUESTS: Final = 16
# The seconds that a client may take to send a request, and to accept the answer.
_REQUEST_S: Final = 5.0
# The seconds that a connection waits for the place of another connection.
_PLACE_S: Final = 1.0
# The metrics are collected and rendered at most once in this many seconds.
_FRESH_S: Final = 1.0

Collect = Callable[[], Families]
# The type that socketserver declares: UDP's requests are pairs.
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class MetricsServer:
    """An HTTP server for Prometheus: `GET /metrics` collects and returns the metrics, with those of the process.

    The server answers in separate threads. It needs neither TLS nor tokens, because it is read-only and shows only
    numbers and the names of actors. Any number of requests costs at most one rendering per second, and 16 threads.

    Attributes:
        address: The listening address, `host:port`.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        """Binds the address and starts to answer.

        Args:
            address: `host:port`; port 0: any free port.
            collect: Returns the metrics. Any thread calls it, one at a time, at most once per second.

        Raises:
            AddressInUseError: Another process has the address.
            ConfigurationError: The server cannot listen at the address for another reason, or it is not a TCP address.
        """
        where = parse_web_address(address)
        check_bindable(where)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(collect))
        ProcessCollector(registry=registry)
        self._server = _Server(where, _Rendered(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="rollcast-metrics", daemon=True)
        self._thread.start()
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"

    def close(self) -> None:
        """Stops the server, and waits until it has ended. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the server."""
        self.close()


class _Collected(Collector):
    """A collector that returns the result of a function."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class _Rendered:
    """The metrics as text, shared by all requests within a second. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._encode, self.content_type = choose_encoder("")
        self._lock = threading.Lock()  # guards the two fields below; one thread renders at a time
        self._rendered_at = -math.inf
        self._texts: dict[bool, bytes] = {}

    def text(self, *, is_compressed: bool) -> bytes:
        """Returns the text, which is at most a second old."""
        with self._lock:
            if time.monotonic() - self._rendered_at > _FRESH_S:
                self._texts = {False: self._encode(self._registry)}
                self._rendered_at = time.monotonic()
            if is_compressed and True not in self._texts:
                self._texts[True] = gzip.compress(self._texts[False])
            return self._texts[is_compressed]


class _Server(ThreadingHTTPServer):
    """A server with places for 16 requests. If all are taken, a new request ends the oldest one.

    So idle connections, and clients that do not read the answer, do not block short requests.
    """

    # A client retries a connection beyond this backlog only after a second.
    request_queue_size = 128

    def __init__(self, where: Address, rendered: _Rendered) -> None:
        ((self.address_family, _, _, _, bound), *_) = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.rendered = rendered
        # Guards the requests, the oldest first, with the client's deadline for its next action.
        self._places = threading.Condition()
        self._requests: dict[socket.socket, float] = {}
        super().__init__((str(bound[0]), int(bound[1])), _Handler)

    def verify_request(self, request: _Request, client_address: object) -> bool:
        """Finds a place for a request. Returns whether it found one."""
        del client_address
        assert isinstance(request, socket.socket), "TCP has no others"
        with self._places:
            if len(self._requests) == _MAX_REQUESTS:
                oldest = next((other for other, until in self._requests.items() if until < math.inf), None)
                if oldest is not None:
                    _cut(oldest)
                if not self._places.wait_for(lambda: len(self._requests) < _MAX_REQUESTS, _PLACE_S):
                    return False
            self._requests[request] = time.monotonic() + _REQUEST_S
        return True

    def service_actions(self) -> None:
        """Ends overdue requests. socketserver calls it twice per second."""
        self._cut_until(time.monotonic())

    def server_close(self) -> None:
        """Closes the server, and ends all requests."""
        super().server_close()
        self._cut_until(math.inf)

    def _cut_until(self, time_s: float) -> None:
        with self._places:
            for request, until in self._requests.items():
                if until <= time_s:
                    _cut(request)

    def note_turn(self, request: socket.socket, *, is_ours: bool) -> None:
        """Notes whether this process or the client has to act next."""
        with self._places:
            self._requests[request] = math.inf if is_ours else time.monotonic() + _REQUEST_S

    def shutdown_request(self, request: _Request) -> None:
        """Ends a request."""
        super().shutdown_request(request)
        assert isinstance(request, socket.socket), "TCP has no others"
        with self._places:
            self._requests.pop(request, None)
            self._places.notify()

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs errors that the client did not cause."""
        del request
        logger.debug("a request of %s for metrics was not answered", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        """Sends the metrics, under any path."""
        server = cast(_Server, self.server)
        is_compressed = "gzip" in self.headers.get("Accept-Encoding", "")
        server.note_turn(self.connection, is_ours=True)
        try:
            text = server.rendered.text(is_compressed=is_compressed)
        except Exception:
            logger.exception("the metrics cannot be collected")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        finally:
            server.note_turn(self.connection, is_ours=False)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", server.rendered.content_type)
        if is_compressed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Logs no requests."""


def _cut(request: socket.socket) -> None:
    """Ends a connection, so that a thread that reads from it or writes to it continues at once."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("a client for metrics is gone", exc_info=True)
