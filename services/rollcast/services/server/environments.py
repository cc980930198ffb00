"""Serves environments that dial in, with health and reflection, in one event loop for all streams."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rollcast.services.address import parse_listening_address
from rollcast.services.environments.dialled import EnvironmentSink
from rollcast.services.environments.latencies import Latencies
from rollcast.services.environments.play import EnvironmentPlay, LoopAlarm, LoopCalls
from rollcast.services.errors import ConfigurationError
from rollcast.services.inference.inference import InferenceSource
from rollcast.services.inference.service import INFERENCE_SERVICE, InferenceServicer
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.descriptors import room_for_connections
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.process.installation import is_installed, require_extra
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.admission import Admission
from rollcast.services.server.aio_interceptor import AioCallInterceptor
from rollcast.services.server.listening import SERVER_OPTIONS, Listening
from rollcast.v1 import environment_pb2

if TYPE_CHECKING:
    from rollcast.services.server.environment_sockets import EnvironmentSockets

_log = logging.getLogger(__name__)

ENVIRONMENT_SERVICE: Final = environment_pb2.DESCRIPTOR.services_by_name["EnvironmentService"].full_name

_OPENS: Final = "can play with the policy, and send data for its training"

# Seconds that a connection may leave a keepalive ping unanswered. A client that steps in its only thread answers no
# pings during a step. If a client's machine has vanished, its environments keep their places for this time.
_SILENCE_S: Final = 60.0
# Seconds that the thread may take to end, after the time for the streams.
_JOIN_TIMEOUT_S: Final = 5.0


class EnvironmentServer:
    """A server of `EnvironmentService`, and of `InferenceService` if `inference` is given.

    Call `start` and `stop` once each, from any thread.

    One thread, `rollcast-environments`, serves all streams.

    Args:
        address: "host:port" (port 0: any free port) or "unix:/path".
        sink: Receives the clients and their turns.
        websocket_address: "host:port" for clients over WebSockets; None: no WebSockets.
        inference: Computes the policy for other actors; None: no inference.
        limits: Limits on clients.
        security: TLS and tokens for clients over TCP; a unix socket uses neither.

    Attributes:
        latencies: The recent waiting times of environments for their actions.
        inference_latencies: The recent waiting times of actors for their answers.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`, or a limit
            is invalid.
    """

    def __init__(
        self,
        address: str,
        sink: EnvironmentSink,
        *,
        websocket_address: str | None = None,
        inference: InferenceSource | None = None,
        limits: Limits = DEFAULT_LIMITS,
        security: ServerSecurity = PLAIN_SERVER,
    ) -> None:
        parsed = parse_listening_address(address)
        security.check_address(address)
        limits.check()
        if websocket_address is not None:
            if parse_listening_address(websocket_address).path is not None:
                raise ConfigurationError(
                    f"the address for WebSockets {websocket_address!r} is a unix socket, which no page can dial; "
                    "expected host:port; give localhost:50054"
                )
            security.check_address(websocket_address)
            require_extra("websockets", "an address for WebSockets")
        self.latencies = Latencies()
        self.inference_latencies = Latencies()
        self._sink = sink
        self._inference = inference
        self._limits = limits
        self._tokens = security.tokens if parsed.path is None else None
        self._security = security
        self._listening = Listening(parsed, security, _OPENS)
        self._websocket_address = websocket_address
        self._sockets: EnvironmentSockets | None = None
        self._started: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._grace_s = 0.0
        self._thread = threading.Thread(target=self._run, name="rollcast-environments", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The served address, with the real port in place of port 0.

        Raises:
            NotReadyError: The server has not been started.
        """
        return self._listening.address

    @property
    def websocket_url(self) -> str | None:
        """The URL for WebSockets, with the real port in place of port 0; None: no WebSockets.

        Raises:
            NotReadyError: The server has not been started.
        """
        if self._websocket_address is None or self._sockets is None:
            return None
        return f"{'ws' if self._security.tls is None else 'wss'}://{self._sockets.address}"

    def start(self) -> None:
        """Starts to listen and serve. Health then reports SERVING.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The server cannot listen at the address for another reason, or cannot use the TLS files.
        """
        self._thread.start()
        self._started.result()

    def stop(self, grace_s: float = 1.0) -> None:
        """Ends every call and frees the address. Idempotent.

        Args:
            grace_s: Seconds that streams may take to end before they are cancelled.
        """
        if self._loop is None or self._end is None:
            return
        self._grace_s = grace_s
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(grace_s + _JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning("the server of environments did not stop within %.1f s", grace_s + _JOIN_TIMEOUT_S)
        self._listening.remove_socket()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        refusals = Refusals()
        half_open = HalfOpenCalls(self._limits, refusals)
        gate = StreamGate(self._limits, refusals, look_after=(half_open.end_late,), is_fixed=True, has_threads=False)
        rate = CallRate(self._limits, is_fixed=True)
        admission = Admission(self._tokens, rate, half_open, gate, refusals)
        # Both listeners share the descriptors.
        n_listeners = 1 if self._websocket_address is None else 2
        max_connections = room_for_connections(n_listeners * self._limits.max_connections) // n_listeners
        silence_ms = int(_SILENCE_S * 1000)
        options = dict(SERVER_OPTIONS) | {
            "grpc.keepalive_timeout_ms": silence_ms,
            "grpc.http2.ping_timeout_ms": silence_ms,
            "grpc.max_allowed_incoming_connections": max_connections,
            "grpc.max_concurrent_streams": self._limits.max_streams_per_connection,
        }
        server = grpc.aio.server(
            interceptors=[AioCallInterceptor(admission)],
            options=tuple(options.items()),
        )
        calls, names = LoopCalls(self._loop), [ENVIRONMENT_SERVICE]
        self._sink.attach(LoopAlarm(self._loop, calls, self._sink.look))
        play = EnvironmentPlay(self._sink, calls, latencies=self.latencies)
        server.add_generic_rpc_handlers((_handlers(play),))
        if self._inference is not None:
            servicer = InferenceServicer(self._inference, calls, self.inference_latencies)
            server.add_generic_rpc_handlers((servicer.handlers(),))
            names.append(INFERENCE_SERVICE)
        health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs do not have it
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        if is_installed("grpc_reflection"):  # part of the extra `learner`
            from grpc_reflection.v1alpha import reflection

            reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        self._listening.bind(server)
        # File modes protect a unix socket, but a page always connects over TCP.
        sockets = self._make_sockets(
            Admission(self._security.tokens, rate, half_open, gate, refusals), play, max_connections
        )
        gate.start()
        try:
            if sockets is not None:
                await sockets.start()
                self._sockets = sockets
            await server.start()
            for name in ("", *names):
                await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
            self._started.set_result(None)
            await self._end.wait()
            gate.drain()
            await health_servicer.enter_graceful_shutdown()
        finally:
            await asyncio.gather(server.stop(self._grace_s), *([sockets.stop(self._grace_s)] if sockets else []))
            gate.stop()

    def _make_sockets(
        self, admission: Admission, play: EnvironmentPlay, max_connections: int
    ) -> "EnvironmentSockets | None":
        if self._websocket_address is None:
            return None
        from rollcast.services.server.environment_sockets import EnvironmentSockets

        return EnvironmentSockets(
            parse_listening_address(self._websocket_address),
            self._security,
            admission,
            play,
            opens=_OPENS,
            max_connections=max_connections,
            silence_s=_SILENCE_S,
        )


def _handlers(play: EnvironmentPlay) -> grpc.GenericRpcHandler:  # type: ignore[type-arg]  # generic in the stubs only
    async def serve(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401  # generic in the stubs only
        # Each of these layers costs a few percent of a round trip: later messages skip the iterator.
        first, read = await anext(requests), context.read

        async def receive() -> bytes | None:
            message = await read()
            return None if message is grpc.aio.EOF else message  # type: ignore[attr-defined]  # the stubs do not have it

        await play(receive, context.write, context.peer(), first=first)

    play_handler: Any = grpc.stream_stream_rpc_method_handler
    return grpc.method_handlers_generic_handler(ENVIRONMENT_SERVICE, {"Play": play_handler(serve)})
