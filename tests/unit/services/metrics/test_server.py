import contextlib
import gzip
import itertools
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollcast.services.errors import AddressInUseError, ConfigurationError
from rollcast.services.metrics.families import Families
from rollcast.services.metrics.server import MetricsServer
from tests.processes import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow


def collected(value: float = 1.0) -> Families:
    families = Families()
    families.gauge("queue_size", "trajectories", value)
    return families


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives requests and their answers half a second."""
    monkeypatch.setattr("rollcast.services.metrics.server._REQUEST_S", 0.5)


def test_a_scrape_has_what_is_collected_within_a_second_and_the_process_itself():
    values: Iterator[float] = map(float, itertools.count(3))
    with MetricsServer("127.0.0.1:0", lambda: collected(next(values))) as server:
        first = scrape(server.address)
        assert first["rollcast_queue_size"] == 3.0
        assert first["process_resident_memory_bytes"] > 1e6
        wait_until(lambda: scrape(server.address)["rollcast_queue_size"] == 4.0, "newer metrics")


def test_those_who_ask_at_once_share_what_is_collected():
    n_collected = itertools.count(1)
    with MetricsServer("127.0.0.1:0", lambda: collected(float(next(n_collected)))) as server:
        began = time.monotonic()
        seen = {scrape(server.address)["rollcast_queue_size"] for _ in range(50)}
        assert len(seen) <= 1 + time.monotonic() - began


def test_a_scrape_is_compressed_for_those_who_read_that():
    with MetricsServer("127.0.0.1:0", collected) as server:
        request = urllib.request.Request(f"http://{server.address}/metrics", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert b"rollcast_queue_size 1.0" in gzip.decompress(answer.read())


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
        ("unix:/tmp/metrics", "the address 'unix:/tmp/metrics' is a unix socket; expected host:port"),
        ("9100", "the address '9100' cannot be used; expected 'host:port'"),
        ("192.0.2.1:0", "the address '192.0.2.1:0' cannot be bound"),
    ],
)
def test_an_address_that_cannot_be_taken_is_refused(address: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        MetricsServer(address, collected)


def dial(stack: contextlib.ExitStack, server: MetricsServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))


def test_half_requests_take_few_threads_and_keep_nobody_out():
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack, MetricsServer("127.0.0.1:0", collected) as server:
        for _ in range(100):
            dial(stack, server).sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert scrape(server.address)["rollcast_queue_size"] == 1.0
        assert len(set(threading.enumerate()) - before) <= 17, "those of 16 requests, and the server's"


def test_a_request_that_does_not_come_is_ended_however_often_it_says_a_letter(short_requests: None):
    with contextlib.ExitStack() as stack, MetricsServer("127.0.0.1:0", collected) as server:
        slow = dial(stack, server)

        slow.settimeout(0.2)

        def is_ended() -> bool:
            try:
                slow.sendall(b"G")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        wait_until(is_ended, "the end of the connection")


def test_an_answer_that_nobody_takes_is_given_up(short_requests: None):
    families = Families()
    for number in range(20_000):
        families.gauge("queue_size", "trajectories", 1.0, {"actor": f"{number:0200d}"})
    with contextlib.ExitStack() as stack, MetricsServer("127.0.0.1:0", lambda: families) as server:
        before = set(threading.enumerate())
        dial(stack, server).sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_until(lambda: set(threading.enumerate()) - before, "an answer to begin")
        wait_until(lambda: before.issuperset(threading.enumerate()), "the answer to be given up")


def test_metrics_that_cannot_be_collected_are_an_error_and_later_ones_are_there(caplog: pytest.LogCaptureFixture):
    answers = iter([ZeroDivisionError("no rows")])

    def collect() -> Families:
        for error in answers:
            raise error
        return collected()

    with MetricsServer("127.0.0.1:0", collect) as server:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(server.address)
        assert "no rows" in caplog.text
        assert scrape(server.address)["rollcast_queue_size"] == 1.0
