import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollcast.services.errors import AddressInUseError, ConfigurationError
from rollcast.services.metrics.families import Families
from rollcast.services.metrics.server import MetricsServer


def collected(value: float = 1.0) -> Families:
    families = Families()
    families.gauge("queue_size", "trajectories", value)
    return families


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_each_scrape_has_what_is_collected_then_and_the_process_itself():
    values: Iterator[float] = iter((3.0, 4.0))
    with MetricsServer("127.0.0.1:0", lambda: collected(next(values))) as server:
        first, second = scrape(server.address), scrape(server.address)
    assert (first["rollcast_queue_size"], second["rollcast_queue_size"]) == (3.0, 4.0)
    assert first["process_resident_memory_bytes"] > 1e6


def test_an_address_is_free_again_after_close():
    with MetricsServer("127.0.0.1:0", collected) as server:
        address = server.address
        with pytest.raises(AddressInUseError, match=f"'{address}' is in use"):
            MetricsServer(address, collected)
    with MetricsServer(address, collected) as server:
        assert scrape(server.address)["rollcast_queue_size"] == 1.0


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("unix:/tmp/metrics", "--metrics-address: 'unix:/tmp/metrics' is a socket of a file; expected host:port"),
        ("9100", "the address '9100' cannot be used; expected 'host:port'"),
        ("192.0.2.1:0", "the address '192.0.2.1:0' cannot be bound"),
    ],
)
def test_an_address_that_cannot_be_taken_is_refused(address: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        MetricsServer(address, collected)


def test_a_client_that_says_nothing_does_not_keep_others_waiting():
    with MetricsServer("127.0.0.1:0", collected) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            assert scrape(server.address)["rollcast_queue_size"] == 1.0
