"""Serves a process's metrics if it has an address for them.

The server, Prometheus' client and Python's HTTP server are imported only if needed, because most processes serve no
metrics.
"""

import contextlib
from collections.abc import Callable, Iterator

from rollcast.services.metrics.families import Families


@contextlib.contextmanager
def served_metrics(
    address: str | None, collect: Callable[[], Families], announce: Callable[[str], object]
) -> Iterator[None]:
    """Serves metrics until the body ends.

    Args:
        address: `host:port`; port 0: any free port. None: no server.
        collect: Returns the metrics. Any thread calls it, one at a time, at most once per second.
        announce: Receives a line with the URL of the metrics.

    Raises:
        AddressInUseError: Another process has the address.
        ConfigurationError: The server cannot listen at the address for another reason, or it is not a TCP address.
    """
    if address is None:
        yield
        return
    from rollcast.services.metrics.server import MetricsServer

    with MetricsServer(address, collect) as server:
        announce(f"metrics for Prometheus at http://{server.address}/metrics")
        yield
