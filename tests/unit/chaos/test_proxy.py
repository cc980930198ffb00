"""The proxy of `make chaos` does to a connection what it says."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.proxy import Proxy, ThinLine
from tests.processes import DEADLINE_S, wait_until

MESSAGE = bytes(range(256)) * 8


@dataclass
class Line:
    """Both ends of one connection through a proxy."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket

    def up(self, message: bytes) -> bytes:
        """Sends upwards, and returns what arrives."""
        self.client.sendall(message)
        return read(self.server, len(message))

    def down(self, message: bytes) -> bytes:
        self.server.sendall(message)
        return read(self.client, len(message))


def read(end: socket.socket, n_bytes: int) -> bytes:
    arrived = b""
    while len(arrived) < n_bytes and (piece := end.recv(n_bytes - len(arrived))):
        arrived += piece
    return arrived


@pytest.fixture
def line() -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(DEADLINE_S)
        proxy = Proxy(listener.getsockname()[1], seed=0)
        stack.callback(proxy.close)
        host, _, port = proxy.address.rpartition(":")
        client = stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
        server = stack.enter_context(listener.accept()[0])
        server.settimeout(DEADLINE_S)
        line = Line(proxy, client, server)
        assert line.up(b"hello") == b"hello"
        assert line.down(b"welcome") == b"welcome"
        yield line


def test_a_cut_resets_both_ends(line: Line):
    assert line.proxy.inject("cut", 0.0, 0.0)
    for end in (line.client, line.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert not line.proxy.inject("cut", 0.0, 0.0), "there is nothing left to cut"


def test_a_half_close_ends_one_direction(line: Line):
    line.proxy.inject("half_close", 0.0, 0.0)
    assert line.server.recv(1) == b""
    assert line.down(b"still there") == b"still there"


def test_a_stall_loses_nothing(line: Line):
    line.proxy.inject("stall", 0.0, 0.0)
    line.client.sendall(MESSAGE)
    line.server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        line.server.recv(1)
    line.proxy.heal()
    line.server.settimeout(DEADLINE_S)
    assert read(line.server, len(MESSAGE)) == MESSAGE


def test_a_delay_loses_nothing(line: Line):
    line.proxy.inject("delay", 0.05, 0.0)
    assert line.up(MESSAGE) == MESSAGE
    line.proxy.heal()
    assert line.down(MESSAGE) == MESSAGE


def test_a_black_hole_tells_nobody(line: Line):
    line.proxy.inject("black_hole", 0.0, 0.0)
    line.client.sendall(b"lost")
    line.server.settimeout(0.3)
    with pytest.raises(TimeoutError):
        line.server.recv(1)


@pytest.mark.parametrize("fault", ["flip", "garble"])
def test_a_flip_changes_one_bit_once(line: Line, fault: str):
    assert not line.proxy.inject(fault, 0.0, 0.0), "nothing has been sent that it could hit"
    arrived = line.up(MESSAGE)
    changed = int.from_bytes(arrived, "big") ^ int.from_bytes(MESSAGE, "big")
    assert changed.bit_count() == 1
    if fault == "flip":
        assert arrived[: len(MESSAGE) // 2] == MESSAGE[: len(MESSAGE) // 2]
    assert line.up(MESSAGE) == MESSAGE
    assert line.down(MESSAGE) == MESSAGE


def test_a_flip_of_a_policy_hits_the_learners_bytes_alone(line: Line):
    assert not line.proxy.inject("flip_policy", 0.0, 0.0), "nothing has been sent that it could hit"
    assert line.up(MESSAGE) == MESSAGE
    arrived = line.down(MESSAGE)
    assert (int.from_bytes(arrived, "big") ^ int.from_bytes(MESSAGE, "big")).bit_count() == 1
    assert line.down(MESSAGE) == MESSAGE


@pytest.mark.parametrize(("fault", "way"), [("flip_turn", "up"), ("flip_actions", "down")])
def test_a_flip_of_a_turn_hits_a_message_alone(line: Line, fault: str, way: str):
    """Of HTTP/2's frames: a ping, and one of data with a message of three bytes."""
    ping, data = bytes([0, 0, 8, 6, *bytes(13)]), bytes([0, 0, 8, 0, 0, 0, 0, 0, 1])
    chunk = ping + data + bytes([0, 0, 0, 0, 3, 7, 7, 7])
    assert not line.proxy.inject(fault, 0.0, 0.0)
    send, back = (line.up, line.down) if way == "up" else (line.down, line.up)
    assert back(chunk) == chunk
    assert send(ping) == ping
    arrived = send(chunk)
    assert arrived[:-3] == chunk[:-3]
    assert (int.from_bytes(arrived[-3:]) ^ 0x070707).bit_count() == 1
    assert send(chunk) == chunk


@pytest.mark.parametrize("which", ["client", "server"])
def test_the_end_of_one_side_reaches_the_other(line: Line, which: str):
    ending, other = (line.client, line.server) if which == "client" else (line.server, line.client)
    ending.close()
    assert other.recv(1) == b""
    other.close()
    wait_until(lambda: not line.proxy.inject("delay", 0.0, 0.0), "the proxy to notice")


def test_a_line_lets_through_its_rate_whatever_the_pauses_between():
    line = ThinLine(bytes_per_s=1000, slack_s=0.01)
    assert line.take(100, 5.0) == pytest.approx(0.1)
    assert line.take(100, 5.0) == pytest.approx(0.2), "behind the piece before"
    assert line.take(100, 5.205) == pytest.approx(0.095), "late by less than the slack"
    assert line.take(100, 9.0) == pytest.approx(0.1), "a pause leaves nothing over"


def test_bytes_are_counted_and_pass_a_shaped_line_unchanged():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(listener.getsockname()[1], seed=0, bytes_per_s=1e9)
        host, _, port = proxy.address.rpartition(":")
        sent = bytes(range(256)) * 2000
        with contextlib.closing(proxy), socket.create_connection((host, int(port)), 5.0) as client:
            server, _ = listener.accept()
            with server:
                server.sendall(sent)
            received = bytearray()
            while len(received) < len(sent):
                received += client.recv(1 << 16)
            assert bytes(received) == sent
        wait_until(lambda: proxy.n_bytes_down == len(sent), "the count")
