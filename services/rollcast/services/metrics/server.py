"""Serves metrics over HTTP, in Prometheus' text format."""

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, start_http_server
from prometheus_client.registry import Collector

from rollcast.services.address import parse_listening_address
from rollcast.services.errors import ConfigurationError
from rollcast.services.server.binding import check_bindable

# The server looks every half second whether it is to end.
_CLOSE_TIMEOUT_S: Final = 5.0

Collect = Callable[[], Iterable[Metric]]


class MetricsServer:
    """An HTTP server for Prometheus: `GET /metrics` has what is collected then, and the process's own metrics.

    It answers in threads of its own. It has neither TLS nor tokens: it gives numbers and the names of actors, and takes
    nothing.

    Attributes:
        address: Where it listens, `host:port`.
    """

    def __init__(self, address: str, collect: Collect) -> None:
        """Binds the address and begins to answer.

        Args:
            address: `host:port`; port 0: any free port.
            collect: Returns the metrics. Called by any thread, at each scrape.

        Raises:
            AddressInUseError: Another process has the address.
            ConfigurationError: The address cannot be taken for another reason, or is no TCP address.
        """
        where = parse_listening_address(address)
        if where.path is not None:
            raise ConfigurationError(
                f"--metrics-address: {address!r} is a socket of a file; expected host:port, as Prometheus asks over "
                "HTTP; choose a port"
            )
        check_bindable(where)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(collect))
        ProcessCollector(registry=registry)
        started: tuple[WSGIServer, threading.Thread] = start_http_server(where.port, where.host, registry)
        self._server, self._thread = started
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
