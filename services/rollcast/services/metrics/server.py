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

# The server looks every half second whether it is to end.
_CLOSE_TIMEOUT_S: Final = 5.0
# The requests that are answered at once: each has a thread and a descriptor.
_MAX_REQUESTS: Final = 16
# A request has to come, and its answer to be taken, in so many seconds each.
_REQUEST_S: Final = 5.0
# A connection waits so long for another's place.
_PLACE_S: Final = 1.0
# Metrics are collected and written down at most so often.
_FRESH_S: Final = 1.0

Collect = Callable[[], Families]
# The type that socketserver names: UDP's requests are pairs.
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class MetricsServer:
    """An HTTP server for Prometheus: `GET /metrics` collects and returns the metrics, with those of the process.

    It answers in threads of its own. It has neither TLS nor tokens: it gives numbers and the names of actors, and takes
    nothing. Any number of requests costs the process at most one rendering a second, and 16 threads.

    Attributes:
        address: Where it listens, `host:port`.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        """Binds the address and begins to answer.

        Args:
            address: `host:port`; port 0: any free port.
            collect: Returns the metrics. Called by any thread, one at a time, at most once a second.

        Raises:
            AddressInUseError: Another process has the address.
            ConfigurationError: The address cannot be taken for another reason, or is no TCP address.
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
        """Ends the server, and waits for it; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()


class _Collected(Collector):
    """Passes on what a function returns."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class _Rendered:
    """The metrics as text, which all requests of a second share. Any thread may ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._encode, self.content_type = choose_encoder("")
        self._lock = threading.Lock()  # guards the two below, and lets one thread render
        self._rendered_at = -math.inf
        self._texts: dict[bool, bytes] = {}

    def text(self, *, is_compressed: bool) -> bytes:
        """Returns the text, at most a second old."""
        with self._lock:
            if time.monotonic() - self._rendered_at > _FRESH_S:
                self._texts = {False: self._encode(self._registry)}
                self._rendered_at = time.monotonic()
            if is_compressed and True not in self._texts:
                self._texts[True] = gzip.compress(self._texts[False])
            return self._texts[is_compressed]


class _Server(ThreadingHTTPServer):
    """A server with a place for 16 requests; if all are taken, the one that has been there longest makes room.

    So idle connections, or those that take no answer, do not keep short requests out.
    """

    # Connections beyond those that wait here are tried again only after a second.
    request_queue_size = 128

    def __init__(self, where: Address, rendered: _Rendered) -> None:
        ((self.address_family, _, _, _, bound), *_) = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.rendered = rendered
        # Guards the requests, the oldest first, with the time until which the client has to do its part.
        self._places = threading.Condition()
        self._requests: dict[socket.socket, float] = {}
        super().__init__((str(bound[0]), int(bound[1])), _Handler)

    def verify_request(self, request: _Request, client_address: object) -> bool:
        """Finds a place for a request; returns whether there is one."""
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
        """Ends, twice a second, the requests whose time is up."""
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
        """Notes that it is this process's turn, or the client's."""
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
        """Logs what is not the client's own."""
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
    """Ends a connection: the thread that reads from it, or writes to it, continues at once."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("a client for metrics is gone", exc_info=True)
