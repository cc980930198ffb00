"""Takes every call of a server through the same steps, from its token to the status of its error."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rollcast.services.address import shown_peer
from rollcast.services.errors import (
    MissingMessageError,
    PermissionDeniedError,
    RollcastError,
    UnauthenticatedError,
    UnreadableMessageError,
)
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.refusals import Refusals, host_of
from rollcast.services.limits.stream_gate import CallPlace, StreamGate
from rollcast.services.rpcs import OTHER_RPC, RPCS, Rpc
from rollcast.services.security.bearer import token_in
from rollcast.services.security.tokens import Role, Tokens
from rollcast.services.wire.error_status import error_to_status, let_go

_log = logging.getLogger(__name__)


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Takes each call through the same steps, by its row in the table of RPCs.

    1. Its token: who may not make it is refused before its request is read, in the one thread that takes all calls.
    2. Its rate: a client that calls too often is refused.
    3. Its request: a client that does not send it in time is refused.
    4. Its place among the streams or calls of the server; a stream whose answers are not taken in time ends.
    5. Its handler.

    An error of any step becomes a rich status; an error that is not of the tree is logged, too. Every method becomes
    one with a stream of requests: for a unary method gRPC would wait for the request in a thread of the pool, without
    a deadline, before any interceptor runs.

    Args:
        tokens: Returns the role of each token; None: no call needs one.
        rate: Counts calls.
        half_open: Bounds the calls that wait for their request, which have no place before it has come.
        gate: Gives streams and calls their places, and ends stuck streams.
        refusals: Notes the errors that a limit caused.
    """

    def __init__(
        self, tokens: Tokens | None, rate: CallRate, half_open: HalfOpenCalls, gate: StreamGate, refusals: Refusals
    ) -> None:
        self._tokens = tokens
        self._rate = rate
        self._half_open = half_open
        self._gate = gate
        self._refusals = refusals

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":  # gRPC's classes are generic in the stubs only
        """Wraps the handler of a call.

        Args:
            continuation: Finds the handler.
            handler_call_details: The call's method and metadata.

        Returns:
            The wrapped handler, or one that refuses the call; None for an unknown method.
        """
        method = handler_call_details.method
        rpc = RPCS.get(method, OTHER_RPC)
        if self._tokens is not None:
            try:
                _check_token(self._tokens, token_in(handler_call_details.invocation_metadata), method, rpc.role)
            except (UnauthenticatedError, PermissionDeniedError) as error:
                return _refusal(error, method)
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None
        decode = _decoder(handler, method)
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            wrapped: Any = self._stream(handler, decode, method, rpc)
        else:
            make = grpc.stream_unary_rpc_method_handler
            wrapped = self._unary(handler.unary_unary, decode, method, rpc)
        return make(wrapped, response_serializer=handler.response_serializer)  # type: ignore[no-any-return]

    def _unary(
        self, behaviour: Callable[..., Any], decode: Callable[[Any], Iterator[Any]], method: str, rpc: Rpc
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def call(serialized: object, context: grpc.ServicerContext) -> object:
            try:
                if rpc.is_counted:
                    self._rate.check(context.peer())
                with self._half_open.call(context.peer(), context.cancel, is_large=rpc.has_large_request):
                    request = _only(decode(serialized), method, context)
                with contextlib.nullcontext() if rpc.is_probe else self._gate.unary_call():
                    return behaviour(request, context)
            except grpc.RpcError:  # the caller is gone
                raise
            except Exception as error:  # noqa: BLE001  # every error must become a status
                self._end_call(error, context, method)

        return call

    def _stream(
        self,
        handler: Any,  # noqa: ANN401  # an untyped named tuple
        decode: Callable[[Any], Iterator[Any]],
        method: str,
        rpc: Rpc,
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        behaviour = handler.stream_stream or handler.unary_stream
        has_many_requests = handler.request_streaming

        def stream(serialized: object, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                self._rate.check(context.peer())
                with self._half_open.call(context.peer(), context.cancel, is_large=has_many_requests):
                    requests = decode(serialized)
                    request = _begun(requests) if has_many_requests else _only(requests, method, context)
                with self._gate.stream(method, context.peer(), context.cancel) as place:
                    responses: Any = behaviour(request, context)
                    try:
                        yield from responses if rpc.is_unhurried else _taken_in_time(responses, place)
                    finally:
                        responses.close()
            except grpc.RpcError as error:  # the caller is gone and reads no status
                let_go(error)
            except Exception as error:  # noqa: BLE001  # every error must become a status
                self._end_call(error, context, method)

        return stream

    def _end_call(self, error: Exception, context: grpc.ServicerContext, method: str) -> NoReturn:
        code = context.code()  # type: ignore[attr-defined]  # the stubs do not have it
        if isinstance(error, NotImplementedError) and code is grpc.StatusCode.UNIMPLEMENTED:
            # A generated servicer, of a method that it lacks; raised, it would be a traceback in the log for each call.
            context.abort(code, str(error))
        if not isinstance(error, RollcastError):
            _log.error("%s failed on a request from %s", method, shown_peer(context.peer()), exc_info=error)
            error = RollcastError(
                f"the learner failed on {method}: {type(error).__name__}: {error}; expected no error; see its log"
            )
        if error.limit:
            self._refusals.note(host_of(context.peer()), error.limit)
        context.abort_with_status(rpc_status.to_status(error_to_status(error)))


def _check_token(tokens: Tokens, token: str | None, method: str, needed: Role | None) -> None:
    if needed is None:
        return
    if token is None:
        raise UnauthenticatedError(
            f"the call of {method} has no token; expected 'authorization: Bearer TOKEN' in its metadata; set "
            "ROLLCAST_TOKEN or --token-file"
        )
    role = tokens.role_of(token)
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
        _log.info("refused %s from %s: %s", method, shown_peer(context.peer()), type(error).__name__)
        context.abort_with_status(rpc_status.to_status(error_to_status(error)))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _decoder(handler: Any, method: str) -> Callable[[Any], Iterator[Any]]:  # noqa: ANN401  # an untyped named tuple
    """Returns a parser that runs in the handler's own thread, where a malformed request becomes an error of the tree.

    gRPC would parse requests in the one thread that serves all completions, and answer INTERNAL.
    """
    deserializer = handler.request_deserializer
    if deserializer is None:
        return iter

    def decode(serialized: bytes) -> object:
        try:
            return deserializer(serialized)
        except DecodeError as error:
            raise UnreadableMessageError(
                f"{method} got {len(serialized)} bytes that do not parse ({error}); expected its request message; send "
                "the message of rollcast/v1/*.proto; send it again if it was damaged on its way"
            ) from error

    return lambda requests: map(decode, requests)


def _only(requests: Iterator[Any], method: str, context: grpc.ServicerContext) -> object:
    request = next(requests, None)
    if request is None:
        raise MissingMessageError(
            f"{method} from {shown_peer(context.peer())} came without a request; expected one message; send it"
        )
    return request


def _begun(requests: Iterator[Any]) -> Iterator[Any]:
    """Waits for the first request, and returns an iterator over all of them."""
    first = next(requests, None)
    return iter(()) if first is None else itertools.chain((first,), requests)


def _taken_in_time(responses: Iterator[Any], place: CallPlace) -> Iterator[Any]:
    for response in responses:
        place.expect("accept a message")
        yield response
        place.settle()
