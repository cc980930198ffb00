"""A line to a server that forwards the messages of one RPC, and may damage them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc

from rollcast.services.client.channel import make_channel

Change = Callable[[bytes], bytes]


class BadLine:
    """Forwards each stream of an RPC, message by message.

    Args:
        method: The method's full name.
        server: The server's address.
        request: Changes a message of the client.
        response: Changes a message of the server.
        digest_of: Returns the digest of a request, and that of a response.

    Attributes:
        n_messages: The requests and the responses so far.
        n_digests: Those that had a digest, as their sender wrote them.
    """

    def __init__(
        self,
        method: str,
        server: str,
        digest_of: tuple[Callable[[bytes], int], Callable[[bytes], int]],
        *,
        request: Change = lambda message: message,
        response: Change = lambda message: message,
    ) -> None:
        self.n_messages, self.n_digests = [0, 0], [0, 0]
        self._method, self._server, self._digest_of = method, server, digest_of
        self._changes = (request, response)

    @contextlib.contextmanager
    def at(self, address: str) -> Iterator[None]:
        """Listens at an address."""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        service, method = self._method.split("/")[1:]
        handler = grpc.stream_stream_rpc_method_handler(self._forward)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(address)
        server.start()
        yield
        server.stop(0.0).wait()

    def _forward(self, requests: Iterable[bytes], context: Any) -> Iterator[bytes]:
        with make_channel(self._server) as channel:
            call = channel.stream_stream(self._method)(self._until_the_end(requests))
            context.add_callback(call.cancel)
            try:
                yield from self._passed(1, call)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

    def _until_the_end(self, requests: Iterable[bytes]) -> Iterator[bytes]:
        with contextlib.suppress(grpc.RpcError):  # the client has ended its call
            yield from self._passed(0, requests)

    def _passed(self, way: int, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            self.n_messages[way] += 1
            self.n_digests[way] += bool(self._digest_of[way](message))
            yield self._changes[way](message)


def flips(number: int) -> Change:
    """Returns a change that flips a bit of one message, the first being number 0."""
    n_seen = 0

    def change(message: bytes) -> bytes:
        nonlocal n_seen
        n_seen += 1
        return damaged(message) if n_seen == number + 1 else message

    return change


def damaged(message: bytes, *, at: int = -12) -> bytes:
    """Returns a message with a flipped bit."""
    changed = bytearray(message)
    changed[at] ^= 1
    return bytes(changed)


def without_digest(message: bytes) -> bytes:
    """Returns a message as a receiver sees it that does not know digests."""
    return message[:-9]
