"""gRPC without a network: what a client sends is handed to the handlers of the server in this process.

The handlers run in threads of the server, and requests are taken in a thread of the client, as with gRPC. Messages are
bytes on their way. Only what the budgets' paths use is here.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc

from tests.budgets.stage import Stage


@contextmanager
def grpc_on(stage: Stage) -> Iterator[None]:
    """Exchanges gRPC's servers and channels for those of one network, which is on a stage."""
    network = _Network(stage)
    with (
        patch.object(grpc, "server", network.server),
        patch.object(grpc, "insecure_channel", network.channel),
    ):
        yield


class _CancelledError(grpc.RpcError):
    """The end of a call that was cancelled."""


class _Details(NamedTuple):
    """gRPC's `HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class _Pipe:
    """One direction of a call."""

    def __init__(self, stage: Stage, method: str) -> None:
        self._stage, self._method = stage, method
        self._messages: deque[bytes] = deque()
        self._has_ended = False
        self._error: Exception | None = None

    def put(self, message: bytes) -> None:
        self._stage.work.add("messages", self._method)
        self._stage.work.add("bytes sent", self._method, len(message))
        self._messages.append(message)

    def end(self, error: Exception | None = None) -> None:
        if not self._has_ended:
            self._has_ended, self._error = True, error

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._stage.wait_until(lambda: self._messages or self._has_ended)
        if self._messages:
            return self._messages.popleft()
        raise self._error or StopIteration


class _Call:
    """A call: to its client an iterator over responses, to its handler the context."""

    def __init__(self, stage: Stage, method: str, decode: Callable[[bytes], Any] | None) -> None:
        self.requests, self.responses = _Pipe(stage, method), _Pipe(stage, method)
        self._decode = decode
        self._is_active = True
        self._at_end = ExitStack()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        message = next(self.responses)
        return message if self._decode is None else self._decode(message)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self._is_active:
            self._at_end.callback(callback)
        return self._is_active

    def is_active(self) -> bool:
        return self._is_active

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def cancel(self) -> None:
        self.end(_CancelledError())

    def end(self, error: Exception | None = None) -> None:
        if self._is_active:
            self._is_active = False
            self.requests.end(error)
            self.responses.end(error)
            self._at_end.close()


class _Server:
    """A `grpc.Server`."""

    def __init__(self, interceptors: Iterable[grpc.ServerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: list[_Call] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        """Does nothing: the generic handlers have them, too."""

    def add_insecure_port(self, _address: str) -> int:
        return 1

    def start(self) -> None:
        """Does nothing."""

    def stop(self, _grace_s: float) -> "_Stopped":
        for call in self._calls:
            call.cancel()
        return _Stopped()

    def serve(self, call: _Call, method: str) -> None:
        """Runs the handler of a call."""
        self._calls.append(call)
        find = self._find
        for interceptor in reversed(self._interceptors):
            find = self._intercepted(interceptor, find)
        handler = find(_Details(method))
        encode = handler.response_serializer or (lambda message: message)
        try:
            if handler.response_streaming:
                for response in handler.stream_stream(call.requests, call):
                    call.responses.put(encode(response))
            else:
                call.responses.put(encode(handler.stream_unary(call.requests, call)))
        except _CancelledError:
            pass
        call.end()

    def _find(self, details: _Details) -> Any:
        return next(found for each in self._handlers if (found := each.service(details)) is not None)

    @staticmethod
    def _intercepted(interceptor: grpc.ServerInterceptor, find: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda details: interceptor.intercept_service(find, details)


class _Stopped:
    """The end of a server, which has come."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return True


class _Channel:
    """A `grpc.Channel`."""

    def __init__(self, network: "_Network") -> None:
        self._network = network
        self._calls: list[_Call] = []

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any):
        def call(request: Any, timeout: float | None = None) -> Any:
            del timeout
            return next(self._open(method, [request], request_serializer, response_deserializer))

        return call

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any):
        return lambda request: self._open(method, [request], request_serializer, response_deserializer)

    def stream_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any):
        return lambda requests: self._open(method, requests, request_serializer, response_deserializer)

    def close(self) -> None:
        for call in self._calls:
            call.cancel()

    def _open(self, method: str, requests: Iterable[Any], encode: Any, decode: Any) -> _Call:
        call = _Call(self._network.stage, method, decode)
        self._calls.append(call)

        def send() -> None:
            for request in requests:
                call.requests.put(request if encode is None else encode(request))
            call.requests.end()

        stage, server = self._network.stage, self._network.the_server
        stage.spawn(lambda: server.serve(call, method), role="learner")
        if isinstance(requests, list):
            send()
        else:
            stage.spawn(send, role=stage.work.role)
        return call


class _Network:
    """One server, and its clients."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._server: _Server | None = None

    @property
    def the_server(self) -> _Server:
        assert self._server is not None, "there is no server yet"
        return self._server

    def server(self, _executor: object, *, interceptors: Iterable[grpc.ServerInterceptor], **_: object) -> _Server:
        self._server = _Server(interceptors)
        return self._server

    def channel(self, _address: str, **_: object) -> _Channel:
        return _Channel(self)
