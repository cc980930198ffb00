"""Holds and floods every socket at which a process of rollcast listens, and measures what that costs the others."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import psutil

from tests.attacks.field_walk import served_methods
from tests.attacks.fleet import DESCRIPTORS, OPERATOR, Figures, Fleet, Member
from tests.attacks.hostile_clients import PREFACE, half_open_calls
from tests.processes import ROOT, SOURCE_ROOTS

_CONNECT_S: Final = 5.0
# Fewer than the connections that a server with so few descriptors lets in.
_N_HALF: Final = 40
_N_FLOODING: Final = 4
_HALF: Final = b"GET /metrics HTTP/1.1\r\nHost: loc"
_WHOLE: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# Every place in the code that listens, and what the fleet has of it; the store of ranks is torch's, and open by design.
LISTENERS: Final = {
    "services/rollcast/services/server/listening.py": "serves",
    "services/rollcast/services/server/environment_sockets.py": "websockets",
    "services/rollcast/services/server/binding.py": "looks whether an address is free",
    "services/rollcast/services/metrics/server.py": "metrics",
    "learner/rollcast/tools/dashboard/server.py": "serves",
    "learner/rollcast/learner/ranks/group.py": "the store and the connections of ranks",
}
_LISTENS: Final = re.compile(
    r"\.listen\(\d|add_(in)?secure_port\(|HTTPServer\)|socket\.create_server\(|start_server\("
    r"|TCPStore\(|init_process_group\(|websockets\.asyncio\.server import"
)


def listeners() -> set[str]:
    """Returns the files of rollcast that listen."""
    files = (path for root in SOURCE_ROOTS for path in root.rglob("*.py"))
    return {str(path.relative_to(ROOT)) for path in files if _LISTENS.search(path.read_text())}


def listening(member: Member) -> set[int]:
    """Returns the ports at which a process, or one below it, listens."""
    process = psutil.Process(member.process.pid)
    return {
        connection.laddr.port
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@dataclass(frozen=True)
class Held:
    """The cost of one attack at one socket.

    Attributes:
        served: A word for what it serves there.
        rate_before: Steps a second of the honest actors before it.
        rate_during: The same while it lasts.
        before: The fleet before it.
        during: The fleet while it lasts; None: nobody new is let in where all connections are held.
        after: The fleet after it.
    """

    member: str
    served: str
    attack: str
    rate_before: float
    rate_during: float
    before: Figures
    during: Figures | None
    after: Figures


_Attack = Callable[[Fleet, str, int], AbstractContextManager[None]]


def _dialled(stack: contextlib.ExitStack, port: int, said: bytes) -> None:
    """Opens a connection that stays open until the stack is unwound, if the server lets it."""
    with contextlib.suppress(OSError):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), _CONNECT_S))
        connection.sendall(said)


@contextlib.contextmanager
def _half_requests(fleet: Fleet, member: str, port: int) -> Iterator[None]:
    """Sends the beginning of requests: of HTTP/1 and 2 to all, and headers of every call to whoever serves calls."""
    methods = []
    if member in fleet.servers and port == fleet.members[member].ports["serves"]:
        served = served_methods(fleet.address(member), OPERATOR)
        methods = [f"/{one.containing_service.full_name}/{one.name}" for one in served]
    with contextlib.ExitStack() as stack:
        for number in range(_N_HALF):
            _dialled(stack, port, (_HALF, PREFACE[:12])[number % 2])
        if methods:
            stack.enter_context(half_open_calls(f"127.0.0.1:{port}", methods))
        yield


@contextlib.contextmanager
def _idle_connections(_fleet: Fleet, _member: str, port: int) -> Iterator[None]:
    """Opens more connections than the process may have descriptors: half of them silent, half begin to speak HTTP/2."""
    with contextlib.ExitStack() as stack:
        for number in range(2 * DESCRIPTORS):
            _dialled(stack, port, (b"", PREFACE)[number % 2])
        yield


@contextlib.contextmanager
def _flood(_fleet: Fleet, _member: str, port: int) -> Iterator[None]:
    """Connects, asks or sends rubbish, and leaves, as fast as it goes."""
    over = threading.Event()

    def run() -> None:
        number = 0
        while not over.is_set():
            number += 1
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), _CONNECT_S) as connection:
                connection.settimeout(_CONNECT_S)
                connection.sendall((_WHOLE, b"\xff" * 1000, PREFACE)[number % 3])
                if number % 3 == 0:
                    connection.recv(1)

    threads = [threading.Thread(target=run, name="flood") for _ in range(_N_FLOODING)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


IDLE: Final = "idle connections"
ATTACKS: Final[Mapping[str, _Attack]] = {
    "half requests": _half_requests,
    IDLE: _idle_connections,
    "flood": _flood,
}


def sockets(fleet: Fleet) -> Iterator[tuple[str, int]]:
    """Yields every socket of the fleet: who listens, and at which port."""
    for name, member in fleet.members.items():
        for port in member.ports.values():
            yield name, port


def walk(fleet: Fleet, seconds: float, *, only: str = "") -> Iterator[Held]:
    """Attacks every socket of the fleet.

    Args:
        seconds: The time of each attack, and of the quiet before it.
        only: A part of the name of what is attacked, as "learner: metrics: flood"; empty: all.
    """
    for name, port in sockets(fleet):
        served = next(what for what, one in fleet.members[name].ports.items() if one == port)
        for attack, attacking in ATTACKS.items():
            if only not in f"{name}: {served}: {attack}":
                continue
            before, rate_before = fleet.figures(), fleet.rate(seconds)
            with attacking(fleet, name, port):
                rate_during = fleet.rate(seconds)
                during = None if attack == IDLE else fleet.figures()
            yield Held(name, served, attack, rate_before, rate_during, before, during, fleet.figures())
