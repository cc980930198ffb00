"""Strangers at the dashboard's port: connections that ask for nothing, or for all pages, are bounded."""

import contextlib
import socket
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.browser import dashboard
from tests.processes import DEADLINE_S, free_port

pytestmark = pytest.mark.slow

UPGRADE = (
    "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture(scope="module")
def url():
    """A dashboard of a learner that is not there."""
    with dashboard("--learner-address", f"127.0.0.1:{free_port()}") as (url, _):
        yield url


@pytest.fixture
def connect(url):
    """Opens connections, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        where = urlsplit(url)
        yield lambda: stack.enter_context(socket.create_connection((where.hostname, where.port), DEADLINE_S))


def said(connection):
    """Everything that the server says until it ends the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(10_000):
            answer += piece
    return answer


def page(url):
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_request_that_does_not_come_is_not_waited_for(connect, sent):
    connection = connect()
    connection.sendall(sent)
    assert said(connection) == b""


def test_a_second_request_that_does_not_come_is_not_waited_for(connect):
    connection = connect()
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.sendall(b"GET /healthz HTTP/1.1\r\n")
    assert said(connection).count(b"the page is served") == 1


def test_the_oldest_connection_makes_room(connect, url):
    connections = [connect() for _ in range(200)]
    assert "rollcast" in page(url)
    assert [said(connection) for connection in connections[: 200 - 128]] == [b""] * (200 - 128)


def test_so_many_pages_are_open_and_the_others_are_refused(connect, url):
    answers = []
    for _ in range(70):
        connection = connect()
        connection.sendall(UPGRADE.encode())
        answers.append(connection.recv(1000).split(b"\r\n")[0].split(b" ")[1])
    assert answers == [b"101"] * 64 + [b"503"] * 6
    assert "rollcast" in page(url)
