"""The table of all RPCs of rollcast's servers: the required role, the deadline, and the rules of admission."""

from dataclasses import dataclass
from typing import Final

from rollcast.services.limits.limits import CALL_TIMEOUT_S, POLICY_TIMEOUT_S, UPDATE_TIMEOUT_S
from rollcast.services.security.tokens import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """An RPC.

    Attributes:
        role: The required role; None: no token required. OPERATOR excludes all other roles, because an operator may
            make every call.
        deadline_s: The deadline of rollcast's own clients, in seconds; None: no deadline, because keepalive detects a
            dead connection.
        is_counted: Whether calls count towards rate limits.
        is_probe: True: the server answers at once from memory, so the call does not count towards `max_calls`.
        has_large_request: True: the request has tensors or spaces, which take a long time on a slow network.
        is_unhurried: True: readers prefetch, so they may pause between answers for any time. A reader occupies the
            memory of one batch.
    """

    role: Role | None
    deadline_s: float | None = CALL_TIMEOUT_S
    is_counted: bool = True
    is_probe: bool = False
    has_large_request: bool = False
    is_unhurried: bool = False

    def deadline_of(self, timeout_s: float) -> float | None:
        """Returns the deadline of this call for a client, in seconds; None: no deadline.

        Args:
            timeout_s: The client's deadline of ordinary calls, in seconds. It does not shorten the deadline of a longer
                call.
        """
        if self.deadline_s is None:
            return None
        return timeout_s if self.deadline_s <= CALL_TIMEOUT_S else max(timeout_s, self.deadline_s)


RPCS: Final[dict[str, Rpc]] = {
    "/rollcast.v1.RolloutService/Join": Rpc(role=Role.ACTOR, has_large_request=True),
    "/rollcast.v1.RolloutService/StreamRollouts": Rpc(role=Role.ACTOR, deadline_s=None),
    "/rollcast.v1.RolloutService/ReportEvaluation": Rpc(role=Role.ACTOR, has_large_request=True),
    "/rollcast.v1.RelayService/StreamBundles": Rpc(role=Role.ACTOR, deadline_s=None),
    "/rollcast.v1.PolicyService/SubscribePolicy": Rpc(role=Role.ACTOR, deadline_s=None),
    "/rollcast.v1.PolicyService/GetPolicy": Rpc(role=Role.ACTOR, deadline_s=POLICY_TIMEOUT_S),
    "/rollcast.v1.PolicyService/Act": Rpc(role=Role.OPERATOR, has_large_request=True),
    "/rollcast.v1.LearnerService/DescribeLearner": Rpc(role=Role.VIEWER),
    "/rollcast.v1.LearnerService/GetStatus": Rpc(role=Role.VIEWER, is_probe=True),
    "/rollcast.v1.LearnerService/WatchStatus": Rpc(role=Role.VIEWER, deadline_s=None),
    "/rollcast.v1.LearnerService/ListActors": Rpc(role=Role.VIEWER),
    "/rollcast.v1.LearnerService/Pause": Rpc(role=Role.OPERATOR, deadline_s=UPDATE_TIMEOUT_S),
    "/rollcast.v1.LearnerService/Resume": Rpc(role=Role.OPERATOR),
    "/rollcast.v1.LearnerService/SaveCheckpoint": Rpc(role=Role.OPERATOR, deadline_s=UPDATE_TIMEOUT_S),
    "/rollcast.v1.LearnerService/Stop": Rpc(role=Role.OPERATOR),
    "/rollcast.v1.HistoryService/WatchHistory": Rpc(role=Role.VIEWER, deadline_s=None),
    "/rollcast.v1.ReplayService/GetReplayInfo": Rpc(role=Role.VIEWER),
    "/rollcast.v1.ReplayService/Sample": Rpc(role=Role.OPERATOR, deadline_s=None, is_unhurried=True),
    "/rollcast.v1.ReplayService/UpdatePriorities": Rpc(role=Role.OPERATOR, has_large_request=True),
    "/rollcast.v1.ReplayService/Reset": Rpc(role=Role.OPERATOR),
    "/rollcast.v1.EnvironmentService/Play": Rpc(role=Role.ACTOR, deadline_s=None),
    "/rollcast.v1.InferenceService/Infer": Rpc(role=Role.ACTOR, deadline_s=None),
    # Every client may make health checks, because load balancers and kubelets have no tokens.
    "/grpc.health.v1.Health/Check": Rpc(role=None, is_counted=False, is_probe=True),
    # The stream stays open until the client ends it.
    "/grpc.health.v1.Health/Watch": Rpc(role=Role.VIEWER, deadline_s=None),
    "/grpc.health.v1.Health/List": Rpc(role=Role.VIEWER, is_counted=False, is_probe=True),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rpc(role=Role.VIEWER, deadline_s=None),
}
# The rule for KEDA's service, and for services of other servers.
OTHER_RPC: Final = Rpc(role=Role.OPERATOR)
