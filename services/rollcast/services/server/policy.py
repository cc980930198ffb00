"""Makes the gRPC server of a saved policy."""

from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.policies.service import PolicyServicer, PolicySource, add_policy_service
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.server import LEARNER_SERVICE, POLICY_SERVICE, GrpcServer, assemble_server
from rollcast.services.status.service import LearnerControl, LearnerServicer
from rollcast.v1 import learner_pb2_grpc


def make_policy_server(
    address: str, *, source: PolicySource, control: LearnerControl, limits: Limits, security: ServerSecurity
) -> GrpcServer:
    """Makes a server of PolicyService, LearnerService and health. Call `start` to serve.

    Args:
        address: "host:port" (port 0: any free port) or "unix:/path".
        source: Provides the policy, and computes actions.
        control: Reports the status.
        limits: The limits on clients. They also determine the number of threads, which the server starts when needed.
        security: TLS and tokens for clients over TCP; a unix socket uses neither.

    Raises:
        ConfigurationError: The address is malformed, or open to other machines without TLS and `insecure`. Or a limit
            is invalid, or a package of the extra `learner` is missing.
    """
    refusals = Refusals()
    return assemble_server(
        address,
        {
            POLICY_SERVICE: lambda server, gate: add_policy_service(PolicyServicer(source, gate), server),
            LEARNER_SERVICE: lambda server, gate: learner_pb2_grpc.add_LearnerServiceServicer_to_server(  # type: ignore[no-untyped-call]
                LearnerServicer(control, gate, refusals, limits), server
            ),
        },
        limits=limits,
        security=security,
        refusals=refusals,
        opens="can request actions of the policy",
    )
