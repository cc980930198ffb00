"""The table of all RPCs that a server of rollcast has: who may make each, its deadline, and how it is admitted."""

from dataclasses import dataclass
from typing import Final

from rollcast.services.limits.limits import CALL_TIMEOUT_S, POLICY_TIMEOUT_S, UPDATE_TIMEOUT_S
from rollcast.services.security.tokens import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """An RPC.

    Attributes:
        role: The role that a call needs; None: no token is needed. An operator may make every call, so OPERATOR stands
            only where no other role may.
        deadline_s: The deadline of rollcast's own clients, in seconds; None: none, keepalive finds a dead connection.
        is_counted: False: calls are never refused, however often they come.
        is_probe: True: it is answered at once from memory, so it needs no place among the calls that take long.
        has_large_request: True: its request has tensors or spaces, which take long on a slow network.
        is_unhurried: True: readers of its answers may pause, because they prefetch. Each costs one batch, for any time.
    """

    role: Role | None
    deadline_s: float | None = CALL_TIMEOUT_S
    is_counted: bool = True
    is_probe: bool = False
    has_large_request: bool = False
    is_unhurried: bool = False

    def deadline_of(self, timeout_s: float) -> float | None:
        """Returns the deadline in seconds of a client that has another one for ordinary calls; None: there is none.

        Args:
            timeout_s: The client's deadline of ordinary calls, in seconds. It shortens no longer deadline.
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
    # Anyone who reaches the port may ask whether it serves: load balancers and kubelets have no secrets.
    "/grpc.health.v1.Health/Check": Rpc(role=None, is_counted=False, is_probe=True),
    # It stays open for as long as the client likes.
    "/grpc.health.v1.Health/Watch": Rpc(role=Role.VIEWER, deadline_s=None),
    "/grpc.health.v1.Health/List": Rpc(role=Role.VIEWER, is_counted=False, is_probe=True),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rpc(role=Role.VIEWER, deadline_s=None),
}
# KEDA's service, and whatever another server adds.
OTHER_RPC: Final = Rpc(role=Role.OPERATOR)
