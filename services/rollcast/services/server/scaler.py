"""Makes the gRPC server of a scaler, which KEDA asks."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rollcast.keda import external_scaler_pb2_grpc
from rollcast.services.address import parse_address
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.scaling.service import EXTERNAL_SCALER, ExternalScalerServicer, WantedActors
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.admission import AdmissionInterceptor
from rollcast.services.server.error_interceptor import ErrorInterceptor
from rollcast.services.server.server import LearnerServer, server_options

# KEDA has one or two operators, and asks every few seconds.
_LIMITS: Final = Limits(max_actors=8, max_connections=64, max_half_open_calls=32, max_half_open_calls_per_host=32)
_PROBE_THREADS: Final = 4
_SERVICES: Final = ("", EXTERNAL_SCALER)


def make_scaler_server(address: str, source: WantedActors, *, security: ServerSecurity = PLAIN_SERVER) -> LearnerServer:
    """Makes a server of KEDA's ExternalScaler and of health; `start` begins to serve.

    Args:
        address: "host:port" (port 0: any free one) or "unix:/path".
        source: The wanted number of actors.
        security: TLS for clients that come over TCP. KEDA sends no tokens.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`.
    """
    parsed = parse_address(address)
    security.check_address(address)
    refusals = Refusals()
    half_open = HalfOpenCalls(_LIMITS, refusals)
    gate = StreamGate(_LIMITS, refusals, look_after=(half_open.end_late,))
    n_threads = _LIMITS.max_streams + _LIMITS.max_calls + _LIMITS.max_half_open_calls + _PROBE_THREADS
    executor = ThreadPoolExecutor(max_workers=n_threads, thread_name_prefix="rollcast-rpc")
    server = grpc.server(
        executor,
        interceptors=[ErrorInterceptor(refusals), AdmissionInterceptor(gate, half_open, CallRate(_LIMITS))],
        options=server_options(_LIMITS),
        maximum_concurrent_rpcs=2 * n_threads,
    )
    external_scaler_pb2_grpc.add_ExternalScalerServicer_to_server(ExternalScalerServicer(source, gate), server)  # type: ignore[no-untyped-call]
    health_servicer = health.HealthServicer()
    for service in _SERVICES:
        health_servicer.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return LearnerServer(
        parsed,
        server=server,
        executor=executor,
        gate=gate,
        health_servicer=health_servicer,
        services=_SERVICES,
        security=security,
        refusals=refusals,
        opens="can ask how many actors the learner wants",
    )
