"""A network and gRPC for tasks of a scheduler: calls, streams, flow control, deadlines, and connections that break."""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from tests.simulation.scheduler import Process, Task
from tests.simulation.threads import process, scheduler

# Messages that a stream takes in before its sender has to wait.
_WINDOW = 3
_END = object()
# Both ends notice at the latest after this time that the other is gone, as their keepalive does, in seconds.
KEEPALIVE_S = 9.0


class Status:
    """The end of a call."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailers: Sequence[tuple[str, Any]] = ()) -> None:
        self.code = code
        self.details = details
        self.trailers = tuple(trailers)


class _Pipe:
    """One direction of a call. One task puts, one gets."""

    def __init__(self, connection: "Connection", *, may_lose: bool) -> None:
        self._connection = connection
        self._may_lose = may_lose
        self._items: deque[tuple[float, Any]] = deque()
        self._getter: Task | None = None
        self._putter: Task | None = None
        self._last_at = 0.0
        self._n_lost = 0
        self.is_broken = False
        self._is_shut = False

    def put(self, item: object, *, waits: bool = True) -> None:
        sim = scheduler()
        while waits and len(self._items) + self._n_lost >= _WINDOW and not self._is_shut:
            self._putter = sim.current
            sim.park()
            self._putter = None
        if self._is_shut:
            return
        if self.is_broken or self._connection.is_silent:
            # Nobody confirms it, so it fills the window of a sender that does not know yet.
            self._n_lost += 1
            return
        if self._may_lose and self._connection.n_to_drop and isinstance(item, bytes):
            self._connection.n_to_drop -= 1
            return
        # Messages do not overtake each other.
        self._last_at = max(self._last_at, sim.now + self._connection.latency_s)
        self._items.append((self._last_at, item))
        self._wake(self._getter)
        sim.pause()

    def get(self) -> object:
        """Waits for the next item; _END if the pipe is broken."""
        sim = scheduler()
        sim.pause()
        while not self.is_broken:
            at = self._items[0][0] if self._items else math.inf
            if at <= sim.now:
                item = self._items.popleft()[1]
                self._wake(self._putter)
                return item
            self._getter = sim.current
            sim.park(at)
            self._getter = None
        return _END

    def shut(self) -> None:
        """Takes nothing more; what is under way arrives."""
        self._is_shut = True
        self._wake(self._putter)

    def shatter(self) -> None:
        """Loses what is under way and what comes, and lets the getter go on."""
        self.is_broken = True
        self._items.clear()
        self._wake(self._getter)
        self._wake(self._putter)

    @staticmethod
    def _wake(task: Task | None) -> None:
        if task is not None:
            scheduler().wake(task)


class Connection:
    """A connection of a channel to a server.

    Attributes:
        latency_s: The time that a message takes.
        is_silent: True while everything that is sent is lost.
        n_to_drop: So many of the next messages are lost.
    """

    def __init__(self, client: Process, server: "Server") -> None:
        self.client = client
        self.server = server
        self.latency_s = 0.0
        self.is_silent = False
        self.n_to_drop = 0
        self.calls: dict[Call, None] = {}
        self.is_closed = False

    def cut(self, *, client_after_s: float = 0.0, server_after_s: float = 0.0) -> None:
        """Breaks it: each end notices after a time; until then all that is sent is lost."""
        if self.is_closed:
            return
        self.is_silent = True
        sim = scheduler()
        sim.spawn(self.client, "client-notices", self._client_notices, delay_s=client_after_s)
        sim.spawn(self.server.process, "server-notices", self._server_notices, delay_s=server_after_s)

    def _client_notices(self) -> None:
        self.is_closed = self.is_silent = True
        for call in list(self.calls):
            call.end_client(Status(grpc.StatusCode.UNAVAILABLE, "Socket closed"))

    def _server_notices(self) -> None:
        self.is_closed = self.is_silent = True
        for call in list(self.calls):
            call.end_server()


class Network:
    """The servers that listen, and the connections to them."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.connections: list[Connection] = []
        self._next_port = 40_000

    def bind(self, server: "Server", address: str) -> int:
        host, _, port = address.rpartition(":")
        number = int(port)
        if not number:
            self._next_port += 1
            number = self._next_port
        key = f"{host}:{number}"
        if key in self.servers:
            raise RuntimeError(f"{key} is taken")
        self.servers[key] = server
        return number

    def connect(self, client: Process, target: str) -> Connection | None:
        """Connects, if a server listens there."""
        server = self.servers.get(target)
        if server is None or not server.is_started:
            return None
        connection = Connection(client, server)
        self.connections.append(connection)
        return connection

    def end_process(self, gone: Process, *, is_silent: bool = False) -> None:
        """Breaks the connections of a process that was killed; silently if its machine is gone with it."""
        after_s = KEEPALIVE_S if is_silent else 0.0
        for key in [key for key, server in self.servers.items() if server.process is gone]:
            del self.servers[key]
        for connection in self.connections:
            if connection.client is gone or connection.server.process is gone:
                connection.cut(client_after_s=after_s, server_after_s=after_s)
        self.connections = [connection for connection in self.connections if not connection.is_silent]


_network = Network()


def begin_network() -> Network:
    """Begins a schedule without servers and connections."""
    global _network  # noqa: PLW0603 - one schedule at a time
    _network = Network()
    return _network


class Channel(grpc.Channel):
    """A `grpc.Channel`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._process = process()
        self._connection: Connection | None = None
        self._is_closed = False

    def _multi_callable(self, method: str, serializer: Any, deserializer: Any, *, is_unary: bool) -> Callable[..., Any]:
        def start(requests: Iterator[Any], timeout: float | None) -> Call:
            if self._is_closed:
                raise ValueError("Cannot invoke RPC on closed channel!")
            connection = self._connection
            if connection is None or connection.is_closed:
                connection = self._connection = _network.connect(self._process, self._target)
            call = Call(connection, self._process, self._target, deserializer, is_unary=is_unary)
            call.begin(method, requests, serializer, timeout)
            return call

        def unary(request: object, timeout: float | None = None, **_options: object) -> object:
            call = start(iter((request,)), timeout)
            responses = list(call)
            assert len(responses) == 1, f"{method} was answered {len(responses)} times"
            return responses[0]

        def stream(requests: Iterator[Any], timeout: float | None = None, **_options: object) -> Call:
            return start(requests, timeout)

        return unary if is_unary else stream

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        return self._multi_callable(method, request_serializer, response_deserializer, is_unary=True)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        stream = self._multi_callable(method, request_serializer, response_deserializer, is_unary=False)
        return lambda request, **options: stream(iter((request,)), **options)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        return self._multi_callable(method, request_serializer, response_deserializer, is_unary=False)

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        return self._multi_callable(method, request_serializer, response_deserializer, is_unary=True)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        raise AssertionError("nothing of rollcast asks for the state of a connection")

    def unsubscribe(self, callback: Any) -> None:
        raise AssertionError("nothing of rollcast asks for the state of a connection")

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            for call in list(self._connection.calls):
                call.cancel()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Call(grpc.RpcError, grpc.Call):  # type: ignore[misc]  # as gRPC's own
    """A call: the client's end, and what the server's end needs of it."""

    def __init__(
        self,
        connection: Connection | None,
        client: Process,
        target: str,
        deserializer: Any,
        *,
        is_unary: bool,
    ) -> None:
        super().__init__()
        self._client = client
        self.target = target
        self._deserializer = deserializer
        self._status: Status | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.connection = connection
        self.context: Context | None = None
        if connection is not None:
            # The one message of a unary call is not missed: its status says that it is not there.
            self.to_server = _Pipe(connection, may_lose=not is_unary)
            self.to_client = _Pipe(connection, may_lose=not is_unary)
            connection.calls[self] = None

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def begin(self, method: str, requests: Iterator[Any], serializer: Any, timeout: float | None) -> None:
        sim = scheduler()
        connection = self.connection
        if connection is None:
            self._status = Status(grpc.StatusCode.UNAVAILABLE, f"failed to connect to {self.target}: refused")
            return
        self.context = Context(self, connection.server)
        sim.spawn(self._client, "send", lambda: self._send(requests, serializer))
        sim.spawn(connection.server.process, "rpc", lambda: connection.server.serve(self, method))
        if timeout is not None:
            sim.spawn(self._client, "deadline", self._expire, delay_s=timeout)
        sim.pause()

    def _send(self, requests: Iterator[Any], serializer: Any) -> None:
        for request in requests:
            if self._status is not None:
                break
            self.to_server.put(request if serializer is None else serializer(request))
        if self._status is None:
            self.to_server.put(_END, waits=False)

    def _expire(self) -> None:
        if self._status is None:
            self.end_client(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self._tell_server()

    def __iter__(self) -> "Call":
        return self

    def __next__(self) -> Any:
        if self._status is None:
            item = self.to_client.get()
            if isinstance(item, Status):
                self.end_client(item)
            elif item is not _END:
                return item if self._deserializer is None else self._deserializer(item)
        status = self._status
        assert status is not None, "a pipe breaks with its call"
        if status.code is grpc.StatusCode.OK:
            raise StopIteration
        raise self

    def end_client(self, status: Status) -> None:
        """Ends the client's end. By a task of the client."""
        if self._status is not None:
            return
        self._status = status
        self._leave()
        self.to_client.shatter()
        self.to_server.shatter()
        self.to_server.shut()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            scheduler().spawn(self._client, "callback", callback)

    def end_server(self) -> None:
        """Ends the server's end. By a task of the server."""
        if self.context is not None:
            self.context.deactivate()
        self.to_server.shatter()
        self.to_client.shut()

    def _leave(self) -> None:
        if self.connection is not None and (self.context is None or self.context.is_over):
            self.connection.calls.pop(self, None)

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self.end_client(Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        self._tell_server()
        return True

    def _tell_server(self) -> None:
        connection = self.connection
        if connection is not None and not connection.is_silent:
            scheduler().spawn(connection.server.process, "cancelled", self.end_server, delay_s=connection.latency_s)

    def is_active(self) -> bool:
        return self._status is None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self._status is not None:
            return False
        self._callbacks.append(callback)
        return True

    def time_remaining(self) -> None:
        return None

    def initial_metadata(self) -> Any:
        return ()

    def trailing_metadata(self) -> Any:
        return () if self._status is None else self._status.trailers

    def code(self) -> grpc.StatusCode | None:  # type: ignore[override]
        return None if self._status is None else self._status.code

    def details(self) -> str:
        return "" if self._status is None else self._status.details

    def __str__(self) -> str:
        return f"{self.code()}: {self.details()}"


class _AbortedError(Exception):
    """A handler has ended its call with a status."""


class _CallerGoneError(grpc.RpcError):
    """The caller of a handler is gone."""


class Context:
    """A `grpc.ServicerContext`."""

    def __init__(self, call: Call, server: "Server") -> None:
        self._call = call
        self._server = server
        self._callbacks: list[Callable[[], None]] = []
        self._is_active = True
        self.is_over = False
        self.status = Status(grpc.StatusCode.OK)

    def is_active(self) -> bool:
        return self._is_active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self._is_active:
            return False
        self._callbacks.append(callback)
        return True

    def deactivate(self) -> None:
        if not self._is_active:
            return
        self._is_active = False
        self._call.to_server.shatter()
        self._call.to_client.shut()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            scheduler().spawn(self._server.process, "callback", callback)

    def cancel(self) -> bool:
        if self._is_active:
            self._call.to_client.put(Status(grpc.StatusCode.CANCELLED, "cancelled by the server"), waits=False)
            self.deactivate()
        return True

    def peer(self) -> str:
        return f"ipv4:10.0.0.1:{abs(hash(self._call.target)) % 1000}"

    def invocation_metadata(self) -> Any:
        return ()

    def time_remaining(self) -> None:
        return None

    def code(self) -> grpc.StatusCode | None:
        return None if self.status.code is grpc.StatusCode.OK else self.status.code

    def details(self) -> str:
        return self.status.details

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = Status(code, self.status.details)

    def set_details(self, details: str) -> None:
        self.status = Status(self.status.code, details)

    def abort_with_status(self, status: Any) -> None:
        self.status = Status(status.code, status.details, status.trailing_metadata)
        raise _AbortedError

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.status = Status(code, details)
        raise _AbortedError

    def requests(self) -> Iterator[Any]:
        while True:
            item = self._call.to_server.get()
            if not self._is_active:
                raise _CallerGoneError
            if item is _END:
                return
            yield item


class Server:
    """A `grpc.Server`."""

    def __init__(
        self, executor: object, interceptors: Sequence[grpc.ServerInterceptor] = (), **_options: object
    ) -> None:
        del executor
        self.process = process()
        self._interceptors = tuple(interceptors)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._contexts: dict[Context, None] = {}
        self._stopped: Any = None
        self.is_started = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The generic handlers are enough."""

    def add_insecure_port(self, address: str) -> int:
        return _network.bind(self, address)

    def start(self) -> None:
        self.is_started = True

    def stop(self, grace: float | None) -> Any:
        self.is_started = False
        for key in [key for key, server in _network.servers.items() if server is self]:
            del _network.servers[key]
        if self._stopped is None:
            self._stopped = threading.Event()
        sim = scheduler()
        if grace:
            sim.spawn(self.process, "grace", self._cancel_all, delay_s=grace)
        else:
            self._cancel_all()
        if not self._contexts:
            self._stopped.set()
        return self._stopped

    def _cancel_all(self) -> None:
        for context in list(self._contexts):
            context.cancel()

    def _find(self, details: grpc.HandlerCallDetails) -> Any:
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                return found
        return None

    def serve(self, call: Call, method: str) -> None:
        """Runs the handler of a call, in a task of its own."""
        context = call.context
        assert context is not None
        self._contexts[context] = None
        try:
            if not self.is_started:
                context.status = Status(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            else:
                self._handle(call, method, context)
        except _AbortedError:
            pass
        except grpc.RpcError:
            context.status = Status(grpc.StatusCode.CANCELLED, "the caller is gone")
        finally:
            was_active = context.is_active()
            context.is_over = True
            del self._contexts[context]
            if self._stopped is not None and not self._contexts:
                self._stopped.set()
        if was_active:
            call.to_client.put(context.status, waits=False)
            context.deactivate()

    def _handle(self, call: Call, method: str, context: Context) -> None:
        details = _Details(method)
        find: Callable[[Any], Any] = self._find
        for interceptor in reversed(self._interceptors):
            find = _Intercepted(interceptor, find)
        handler = find(details)
        if handler is None:
            context.status = Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        requests = context.requests()
        if handler.request_deserializer is not None:
            requests = map(handler.request_deserializer, requests)  # type: ignore[assignment]
        serialize = handler.response_serializer or (lambda response: response)
        if not handler.response_streaming:
            call.to_client.put(serialize(handler.stream_unary(requests, context)))
            return
        responses = handler.stream_stream(requests, context)
        try:
            for response in responses:
                if not context.is_active():
                    break
                call.to_client.put(serialize(response))
        finally:
            responses.close()


class _Intercepted:
    def __init__(self, interceptor: grpc.ServerInterceptor, find: Callable[[Any], Any]) -> None:
        self._interceptor, self._find = interceptor, find

    def __call__(self, details: Any) -> Any:
        return self._interceptor.intercept_service(self._find, details)


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()
