"""Makes the gRPC server of a scaler for KEDA."""

from typing import Final

from rollcast.keda import external_scaler_pb2_grpc
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.scaling.bounds import NO_BOUNDS, ActorBounds
from rollcast.services.scaling.service import EXTERNAL_SCALER, ExternalScalerServicer, WantedActors
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.server import GrpcServer, assemble_server

# KEDA has one or two operators, which call every few seconds.
_LIMITS: Final = Limits(max_actors=8, max_connections=64, max_half_open_calls=32, max_half_open_calls_per_host=32)


def make_scaler_server(
    address: str,
    source: WantedActors,
    *,
    bounds: ActorBounds = NO_BOUNDS,
    security: ServerSecurity = PLAIN_SERVER,
) -> GrpcServer:
    """Makes a server of KEDA's ExternalScaler and of health. Call `start` to serve.

    Args:
        address: "host:port" (port 0: any free port) or "unix:/path".
        source: Provides the wanted number of actors.
        bounds: The bounds of this number. A trigger may narrow them.
        security: TLS for clients over TCP. KEDA sends no tokens.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`.
    """
    return assemble_server(
        address,
        {
            EXTERNAL_SCALER: lambda server, gate: external_scaler_pb2_grpc.add_ExternalScalerServicer_to_server(  # type: ignore[no-untyped-call]
                ExternalScalerServicer(source, gate, bounds), server
            )
        },
        limits=_LIMITS,
        security=security,
        refusals=Refusals(),
        opens="can read the number of actors that the learner wants",
        has_fixed_limits=True,
    )
