"""The upper bounds of ingest, broadcast and replay: gRPC streams that carry bytes and do nothing else.

Servers and clients run in separate processes, with gRPC's defaults and the allocator of learner and actors.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import grpc

from rollcast.services.client.channel import make_channel
from rollcast.services.security.credentials import server_credentials
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity, ServerTls
from rollcast.services.server.listening import KEEPALIVE_OPTIONS
from rollcast.services.wire.allocator import reuse_large_buffers

_SERVICE = "rollcast.benchmarks.Bare"
# As for rollout streams: one credit that an actor always has, and one for which the queue has reserved room.
WINDOW = 2


def serve_uploads(
    address: Connection, received: "Synchronized[int]", n_clients: int, tls: ServerTls | None = None
) -> None:
    """Process: sends its address, then counts the bytes of every message and acknowledges it, for ever."""
    reuse_large_buffers()

    def upload(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for message in requests:
            with received.get_lock():
                received.value += len(message)
            yield b"acknowledged"

    server, where = _serve("Upload", grpc.stream_stream_rpc_method_handler(upload), n_clients, tls)
    address.send_bytes(where.encode())
    server.wait_for_termination()


def upload(address: str, message: bytes, sending: "Synchronized[int]", security: ClientSecurity = PLAIN_CLIENT) -> None:
    """Process: sends the same message for ever while `sending` is set, with at most `WINDOW` unacknowledged."""
    reuse_large_buffers()
    room = threading.Semaphore(WINDOW)

    def messages() -> Iterator[bytes]:
        while True:
            if not sending.value:
                time.sleep(0.001)
            elif room.acquire(timeout=0.1):
                yield message

    with make_channel(address, security) as channel:
        for _ in channel.stream_stream(f"/{_SERVICE}/Upload")(messages(), wait_for_ready=True):
            room.release()


def serve_fan_out(address: Connection, orders: Connection, published: "Synchronized[float]", n_clients: int) -> None:
    """Process: sends its address, then the ordered number of chunks to every subscriber.

    An order is `"number of chunks, bytes in all"`; the time of each order goes to `published`.
    """
    reuse_large_buffers()
    changed = threading.Condition()
    newest: tuple[int, tuple[bytes, ...]] = (0, ())

    def subscribe(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        version = 0
        while context.is_active():
            with changed:
                if newest[0] == version and not changed.wait(1.0):
                    continue
                version, chunks = newest
            yield from chunks

    _server, where = _serve("Subscribe", grpc.unary_stream_rpc_method_handler(subscribe), n_clients)
    address.send_bytes(where.encode())
    while True:
        n_chunks, n_bytes = map(int, orders.recv_bytes().split())
        chunks = tuple(b"\1" * (n_bytes // n_chunks) for _ in range(n_chunks))
        published.value = time.monotonic()
        with changed:
            newest = newest[0] + 1, chunks
            changed.notify_all()


def collect(channel: grpc.Channel, n_bytes: int) -> Iterator[float]:
    """Subscribes; yields the time whenever another `n_bytes` have arrived."""
    collected: list[bytes] = []
    size = 0
    for chunk in channel.unary_stream(f"/{_SERVICE}/Subscribe")(b"", wait_for_ready=True):
        collected.append(chunk)
        size += len(chunk)
        if size >= n_bytes:
            yield time.monotonic()
            collected, size = [], 0


def serve_downloads(address: Connection, sizes: Sequence[int]) -> None:
    """Process: sends its address, then messages of these sizes to every client, for ever."""
    reuse_large_buffers()
    messages = [b"\1" * size for size in sizes]

    def download(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            yield from messages

    server, where = _serve("Download", grpc.unary_stream_rpc_method_handler(download), 1)
    address.send_bytes(where.encode())
    server.wait_for_termination()


def download(address: str, receiving: "Synchronized[bool]", received: "Synchronized[int]") -> None:
    """Process: counts the bytes it receives while `receiving` is set, and reads nothing otherwise, for ever."""
    reuse_large_buffers()
    with make_channel(address) as channel:
        for message in channel.unary_stream(f"/{_SERVICE}/Download")(b"", wait_for_ready=True):
            received.value += len(message)
            while not receiving.value:
                time.sleep(0.001)


def _serve(
    method: str, handler: "grpc.RpcMethodHandler", n_clients: int, tls: ServerTls | None = None
) -> tuple[grpc.Server, str]:
    server = grpc.server(
        ThreadPoolExecutor(n_clients + 1),
        options=(
            ("grpc.so_reuseport", 0),
            *KEEPALIVE_OPTIONS,
        ),
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {method: handler}),))
    where = "127.0.0.1:0"
    port = server.add_insecure_port(where) if tls is None else server.add_secure_port(where, server_credentials(tls))
    server.start()
    return server, f"127.0.0.1:{port}"
