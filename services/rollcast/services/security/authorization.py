"""Decides which role may make which call: one table over all RPCs, and the interceptor that enforces it."""

import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn

import grpc
from grpc_status import rpc_status

from rollcast.services.errors import PermissionDeniedError, RollcastError, UnauthenticatedError
from rollcast.services.security.bearer import token_in
from rollcast.services.security.tokens import Role, Tokens
from rollcast.services.wire.error_status import error_to_status

_log = logging.getLogger(__name__)

# No token is needed: anyone who reaches the port may ask whether it serves. Load balancers and kubelets have no
# secrets.
EVERYBODY: Final = None

# The role that each call needs. An operator may make all of them, so it is named only if no other role may. A call that
# is missing here needs an operator.
METHOD_ROLES: Final[dict[str, Role | None]] = {
    "/rollcast.v1.RolloutService/Join": Role.ACTOR,
    "/rollcast.v1.RolloutService/StreamRollouts": Role.ACTOR,
    "/rollcast.v1.RolloutService/ReportEvaluation": Role.ACTOR,
    "/rollcast.v1.RelayService/StreamBundles": Role.ACTOR,
    "/rollcast.v1.PolicyService/SubscribePolicy": Role.ACTOR,
    "/rollcast.v1.PolicyService/GetPolicy": Role.ACTOR,
    "/rollcast.v1.PolicyService/Act": Role.OPERATOR,
    "/rollcast.v1.LearnerService/DescribeLearner": Role.VIEWER,
    "/rollcast.v1.LearnerService/GetStatus": Role.VIEWER,
    "/rollcast.v1.LearnerService/WatchStatus": Role.VIEWER,
    "/rollcast.v1.LearnerService/ListActors": Role.VIEWER,
    "/rollcast.v1.HistoryService/WatchHistory": Role.VIEWER,
    "/rollcast.v1.LearnerService/Pause": Role.OPERATOR,
    "/rollcast.v1.LearnerService/Resume": Role.OPERATOR,
    "/rollcast.v1.LearnerService/SaveCheckpoint": Role.OPERATOR,
    "/rollcast.v1.LearnerService/Stop": Role.OPERATOR,
    "/rollcast.v1.ReplayService/GetReplayInfo": Role.VIEWER,
    "/rollcast.v1.ReplayService/Sample": Role.OPERATOR,
    "/rollcast.v1.ReplayService/UpdatePriorities": Role.OPERATOR,
    "/rollcast.v1.ReplayService/Reset": Role.OPERATOR,
    "/grpc.health.v1.Health/Check": EVERYBODY,
    # It stays open for as long as the client likes.
    "/grpc.health.v1.Health/Watch": Role.VIEWER,
    "/grpc.health.v1.Health/List": Role.VIEWER,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.VIEWER,
}


class AuthorizationInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Admits a call if its token's role may make it; goes before every other interceptor.

    It decides in the one thread that takes all calls. A refusal occupies a thread of the pool only to answer, and reads
    nothing of the request.

    Args:
        tokens: Returns the role of each token.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":  # gRPC's classes are generic in the stubs only
        """Returns the handler of a call, or one that refuses it.

        Args:
            continuation: Finds the handler.
            handler_call_details: The call's method and metadata.
        """
        method = handler_call_details.method
        try:
            self._check(method, token_in(handler_call_details.invocation_metadata))
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return _refusal(error, method)
        return continuation(handler_call_details)

    def _check(self, method: str, token: str | None) -> None:
        needed = METHOD_ROLES.get(method, Role.OPERATOR)
        if needed is EVERYBODY:
            return
        if token is None:
            raise UnauthenticatedError(
                f"the call of {method} has no token; expected 'authorization: Bearer TOKEN' in its metadata; set "
                "ROLLCAST_TOKEN or --token-file"
            )
        role = self._tokens.role_of(token)
        if role is None:
            raise UnauthenticatedError(
                f"the token of the call of {method} is unknown to this learner; expected one from its tokens file; "
                "correct it, or add it there"
            )
        if role not in (needed, Role.OPERATOR):
            others = "" if needed is Role.OPERATOR else f"{needed.value} or "
            raise PermissionDeniedError(
                f"the token's role is {role.value}, which may not call {method}; expected {others}operator; use the "
                "token of such a role"
            )


def _refusal(error: RollcastError, method: str) -> "grpc.RpcMethodHandler[Any, Any]":
    """Returns a handler that ends a call of any kind before it reads a request."""

    def refuse(requests: object, context: grpc.ServicerContext) -> NoReturn:
        del requests
        _log.info("refused %s from %s: %s", method, context.peer(), type(error).__name__)
        context.abort_with_status(rpc_status.to_status(error_to_status(error)))

    return grpc.stream_stream_rpc_method_handler(refuse)
