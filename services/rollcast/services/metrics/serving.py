"""Serves a process's metrics if it has an address for them.

Imports the server, and with it Prometheus' client and Python's HTTP server, only then: most processes have none.
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
        address: `host:port`; port 0: any free port. None: nothing is served.
        collect: Returns the metrics. Called by any thread, one at a time, at most once a second.
        announce: Takes a line that says where they are.

    Raises:
        AddressInUseError: Another process has the address.
        ConfigurationError: The address cannot be taken for another reason, or is no TCP address.
    """
    if address is None:
        yield
        return
    from rollcast.services.metrics.server import MetricsServer

    with MetricsServer(address, collect) as server:
        announce(f"metrics for Prometheus at http://{server.address}/metrics")
        yield
