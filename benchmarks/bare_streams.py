"""The ceilings of ingest and broadcast: gRPC streams that carry bytes and do nothing with them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from services.channel import MAX_MESSAGE_BYTES, make_channel

_SERVICE = "rollcast.benchmarks.Bare"
# As many as rollout streams have under way: one credit always, one more that the queue has reserved room for.
WINDOW = 2


class ByteCounter:
    """What the server has received. One counter for all threads: a lost update would be a lost message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_bytes = 0

    def add(self, n_bytes: int) -> None:
        """Counts a message."""
        with self._lock:
            self.n_bytes += n_bytes


class ByteFanOut:
    """Holds the newest list of messages for the subscribers that wait for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._messages: tuple[bytes, ...] = ()

    def publish(self, messages: tuple[bytes, ...]) -> None:
        """Wakes every subscriber."""
        with self._changed:
            self._version += 1
            self._messages = messages
            self._changed.notify_all()

    def wait_newer(self, version: int) -> tuple[int, tuple[bytes, ...]]:
        """Waits up to a second for another version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, 1.0)
            return self._version, self._messages if self._version > version else ()


def serve_bytes(counter: ByteCounter, fan_out: ByteFanOut, *, n_threads: int) -> tuple[grpc.Server, str]:
    """Starts a server with both streams and the learner's limits; returns it and its address."""

    def upload(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        for message in requests:
            counter.add(len(message))
            yield b"acknowledged"

    def subscribe(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        version = 0
        while context.is_active():
            version, messages = fan_out.wait_newer(version)
            yield from messages

    server = grpc.server(
        ThreadPoolExecutor(n_threads),
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ),
    )
    handlers = {
        "Upload": grpc.stream_stream_rpc_method_handler(upload),
        "Subscribe": grpc.unary_stream_rpc_method_handler(subscribe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


class BareUplink:
    """Sends the same message again and again, at most `WINDOW` unacknowledged."""

    def __init__(self, address: str, message: bytes) -> None:
        self._message = message
        self._room = threading.Semaphore(WINDOW)
        self._wanted = threading.Semaphore(0)
        self._channel = make_channel(address)
        self._call = self._channel.stream_stream(f"/{_SERVICE}/Upload")(self._messages())
        threading.Thread(target=self._read, name="bare-acknowledgements", daemon=True).start()

    def send(self) -> None:
        """Waits for room in the window, and lets the message go."""
        self._room.acquire()
        self._wanted.release()

    def close(self) -> None:
        """Ends the stream."""
        self._call.cancel()
        self._wanted.release()
        self._channel.close()

    def _messages(self) -> Iterator[bytes]:
        while self._wanted.acquire() and self._call_is_active():
            yield self._message

    def _call_is_active(self) -> bool:
        call = getattr(self, "_call", None)  # gRPC asks for the first message before it has returned the call
        return call is None or call.is_active()

    def _read(self) -> None:
        try:
            for _ in self._call:
                self._room.release()
        except grpc.RpcError:
            self._room.release()


def collect_bytes(channel: grpc.Channel, n_bytes: Callable[[], int], on_whole: Callable[[], None]) -> None:
    """Subscribes and calls `on_whole` whenever messages of `n_bytes()` together are there; until cancelled."""
    collected: list[bytes] = []
    size = 0
    try:
        for message in channel.unary_stream(f"/{_SERVICE}/Subscribe")(b""):
            collected.append(message)
            size += len(message)
            if size >= n_bytes():
                on_whole()
                collected, size = [], 0
    except grpc.RpcError:
        pass  # the channel was closed
