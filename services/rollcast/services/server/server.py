"""Makes gRPC servers, such as a learner's, with threads, options, health and reflection."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rollcast.services.address import parse_listening_address
from rollcast.services.history.service import HistoryServicer, HistorySource
from rollcast.services.limits.bytes_in_flight import BytesInFlight
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.descriptors import room_for_connections
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.policies.evaluated import EvaluatedPolicies
from rollcast.services.policies.service import PolicyServicer, PolicySource, add_policy_service
from rollcast.services.process.installation import require_extra
from rollcast.services.replay.service import ReplayServicer, ReplaySource, add_replay_service
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.admission import Admission
from rollcast.services.server.interceptor import CallInterceptor
from rollcast.services.server.listening import SERVER_OPTIONS, Listening
from rollcast.services.status.service import LearnerControl, LearnerServicer
from rollcast.services.streams.bundle_service import BundleServicer, add_relay_service
from rollcast.services.streams.bundled_stream import BundleSink
from rollcast.services.streams.service import EvaluationSink, RolloutServicer, RolloutSink, add_rollout_service
from rollcast.v1 import (
    history_pb2,
    history_pb2_grpc,
    learner_pb2,
    learner_pb2_grpc,
    policy_pb2,
    relay_pb2,
    replay_pb2,
    rollout_pb2,
)

_log = logging.getLogger(__name__)

ROLLOUT_SERVICE: Final = rollout_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
POLICY_SERVICE: Final = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name
RELAY_SERVICE: Final = relay_pb2.DESCRIPTOR.services_by_name["RelayService"].full_name
LEARNER_SERVICE: Final = learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name
HISTORY_SERVICE: Final = history_pb2.DESCRIPTOR.services_by_name["HistoryService"].full_name
REPLAY_SERVICE: Final = replay_pb2.DESCRIPTOR.services_by_name["ReplayService"].full_name

# Threads for probes, which no stream, slow call or half-open call may take.
_PROBE_THREADS: Final = 8
# Seconds that handlers may take to notice that their call has been cancelled.
_JOIN_TIMEOUT_S: Final = 5.0


# Adds a service to a server. The server's gate counts the streams of all services.
AddService: TypeAlias = Callable[[grpc.Server, StreamGate], None]


class Evaluators(EvaluatedPolicies, EvaluationSink, Protocol):
    """The part of a learner that evaluators need."""


class GrpcServer:
    """A gRPC server with limits, from `assemble_server`. Call `start` and `stop` once each, from any thread.

    Invariant: a call that sends its request waits for a thread only for a moment. The pool has a thread for each
    stream, each unary call and each half-open call that the limits allow, and eight for probes. `StreamGate` and
    `HalfOpenCalls` refuse or end calls above these limits at once, so such a call occupies a thread only briefly.

    Args:
        listening: The address.
        server: The gRPC server, with its services.
        executor: The server's threads.
        gate: Counts streams, and ends stuck calls.
        health_servicer: Reports the server's health.
        services: The names of the services whose health is reported; the empty name stands for the whole server.
        refusals: Records the clients that recently reached a limit.
    """

    def __init__(
        self,
        listening: Listening,
        *,
        server: grpc.Server,
        executor: ThreadPoolExecutor,
        gate: StreamGate,
        health_servicer: health.HealthServicer,
        services: Sequence[str],
        refusals: Refusals,
    ) -> None:
        self.refusals = refusals
        self._listening = listening
        self._server = server
        self._executor = executor
        self._gate = gate
        self._health = health_servicer
        self._services = tuple(services)

    @property
    def port(self) -> int:
        """The served port; 0 for a unix socket.

        Raises:
            NotReadyError: The server has not been started.
        """
        return self._listening.port

    @property
    def address(self) -> str:
        """The served address, with the real port in place of port 0.

        Raises:
            NotReadyError: The server has not been started.
        """
        return self._listening.address

    def start(self) -> None:
        """Starts to listen and serve. Health then reports SERVING.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The server cannot listen at the address for another reason, or cannot use the TLS files.
        """
        self._listening.bind(self._server)
        self._gate.start()
        self._server.start()
        for service in self._services:
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def drain(self) -> None:
        """Reports NOT_SERVING and refuses new streams; open streams and control calls continue."""
        self._gate.drain()
        self._health.enter_graceful_shutdown()

    def stop(self, grace_s: float = 1.0) -> None:
        """Ends every call and frees the address. Idempotent.

        Args:
            grace_s: Seconds that calls may take to end before they are cancelled.
        """
        self.drain()
        self._gate.stop()
        if not self._server.stop(grace_s).wait(grace_s + _JOIN_TIMEOUT_S):
            _log.warning("the server did not stop within %.1f s; a handler ignores that its call has ended", grace_s)
        # `shutdown` itself cannot wait with a deadline.
        joiner = threading.Thread(target=self._executor.shutdown, name="rollcast-rpc-join", daemon=True)
        joiner.start()
        joiner.join(_JOIN_TIMEOUT_S)
        if joiner.is_alive():
            _log.warning("handlers of the server still run %.1f s after their calls were cancelled", _JOIN_TIMEOUT_S)
        self._listening.remove_socket()


def assemble_server(
    address: str,
    services: Mapping[str, AddService],
    *,
    limits: Limits,
    security: ServerSecurity,
    refusals: Refusals,
    opens: str,
    look_after: Sequence[Callable[[], None]] = (),
    has_fixed_limits: bool = False,
) -> GrpcServer:
    """Makes a server of these services, with limits, health checks and reflection. Call `start` to serve.

    Args:
        address: "host:port" (port 0: any free port) or "unix:/path".
        services: Adds each service to the server, by its full name.
        limits: Limits on clients; they also determine the number of threads, which are made when needed.
        security: TLS and tokens for clients over TCP; a unix socket uses neither.
        refusals: Records the clients that recently reached a limit.
        opens: See `Listening`.
        look_after: Functions that end overdue calls. The server calls them regularly.
        has_fixed_limits: True: no option raises the limits, so messages suggest no option.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`; or a limit
            is invalid; or a package of the extra `learner` is missing.
    """
    require_extra("learner", "a server", "grpc_reflection")
    from grpc_reflection.v1alpha import reflection

    parsed = parse_listening_address(address)
    security.check_address(address)
    limits.check()
    half_open = HalfOpenCalls(limits, refusals)
    gate = StreamGate(limits, refusals, look_after=(*look_after, half_open.end_late), is_fixed=has_fixed_limits)
    tokens = security.tokens if parsed.path is None else None
    rate = CallRate(limits, is_fixed=has_fixed_limits)
    n_threads = limits.max_streams + limits.max_calls + limits.max_half_open_calls + _PROBE_THREADS
    executor = ThreadPoolExecutor(max_workers=n_threads, thread_name_prefix="rollcast-rpc")
    server = grpc.server(
        executor,
        interceptors=[CallInterceptor(Admission(tokens, rate, half_open, gate, refusals))],
        options=(
            *SERVER_OPTIONS,
            ("grpc.max_allowed_incoming_connections", room_for_connections(limits.max_connections)),
            ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
        ),
        # As many more calls may briefly wait for a thread. A larger number is a flood.
        maximum_concurrent_rpcs=2 * n_threads,
    )
    for add in services.values():
        add(server, gate)
    health_servicer = health.HealthServicer()
    # the empty name stands for the whole server
    names = ("", *services)
    for name in names:
        health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return GrpcServer(
        Listening(parsed, security, opens),
        server=server,
        executor=executor,
        gate=gate,
        health_servicer=health_servicer,
        services=names,
        refusals=refusals,
    )


def make_server(
    address: str,
    *,
    sink: RolloutSink,
    source: PolicySource,
    control: LearnerControl,
    history: HistorySource | None = None,
    replay: Mapping[str, ReplaySource] | None = None,
    evaluators: Evaluators | None = None,
    relays: BundleSink | None = None,
    limits: Limits = DEFAULT_LIMITS,
    security: ServerSecurity = PLAIN_SERVER,
) -> GrpcServer:
    """Makes a learner's server with all its services, health and reflection. Call `start` to serve.

    Args:
        address: "host:port" (port 0: any free port) or "unix:/path".
        sink: Receives the rollouts.
        source: Provides the policies.
        control: Reports the status, and executes an operator's commands.
        history: Provides the run's history; None: no HistoryService.
        replay: The replay buffers to serve, by substep key; None: no ReplayService.
        evaluators: Assigns versions to evaluators and receives their reports; None: no evaluations.
        relays: Receives the rollouts of relays; None: no RelayService.
        limits: Limits on clients; they also determine the number of threads, which are made when needed.
        security: TLS and tokens for clients over TCP; a unix socket uses neither.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`; or a limit
            is invalid; or a package of the extra `learner` is missing.
    """
    refusals = Refusals()
    bytes_in_flight = BytesInFlight(limits, refusals)
    rollouts = RolloutServicer(
        sink, bytes_in_flight, max_rollout_bytes=limits.max_rollout_bytes, evaluations=evaluators
    )
    services: dict[str, AddService] = {
        ROLLOUT_SERVICE: lambda server, _: add_rollout_service(rollouts, server),
        POLICY_SERVICE: lambda server, gate: add_policy_service(PolicyServicer(source, gate, evaluators), server),
        LEARNER_SERVICE: lambda server, gate: learner_pb2_grpc.add_LearnerServiceServicer_to_server(  # type: ignore[no-untyped-call]
            LearnerServicer(control, gate, refusals, limits), server
        ),
    }
    if relays is not None:
        bundles = BundleServicer(relays, bytes_in_flight, limits, refusals)
        services[RELAY_SERVICE] = lambda server, _: add_relay_service(bundles, server)
    if history is not None:
        services[HISTORY_SERVICE] = lambda server, gate: history_pb2_grpc.add_HistoryServiceServicer_to_server(  # type: ignore[no-untyped-call]
            HistoryServicer(history, gate, refusals), server
        )
    if replay is not None:
        services[REPLAY_SERVICE] = lambda server, gate: add_replay_service(ReplayServicer(replay, gate), server)
    return assemble_server(
        address,
        services,
        limits=limits,
        security=security,
        refusals=refusals,
        opens="can join, steer and stop the learner",
        look_after=(bytes_in_flight.end_stalled,),
    )
