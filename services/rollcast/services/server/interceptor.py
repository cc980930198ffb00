"""Makes the checks of `Admission` for every call of a threaded server, and converts errors to statuses."""

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from grpc_status import rpc_status

from rollcast.services.address import shown_peer
from rollcast.services.errors import PermissionDeniedError, UnauthenticatedError
from rollcast.services.limits.stream_gate import CallPlace
from rollcast.services.server.admission import Admission, decoder, no_request
from rollcast.services.wire.error_status import error_to_status, let_go

_log = logging.getLogger(__name__)


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Makes the checks of `Admission`, then runs the call's handler, in a thread of the server's pool.

    An error of any check becomes a rich status; an unforeseen error is also logged. The interceptor converts every
    method to a method with a stream of requests. For a unary method, gRPC would wait for the request in a thread of the
    pool, without a deadline, before any interceptor runs. The thread that accepts all calls checks tokens.

    Args:
        admission: The checks.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

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
            The wrapped handler, or a handler that refuses the call; None for an unknown method.
        """
        method = handler_call_details.method
        try:
            self._admission.check_token(method, handler_call_details.invocation_metadata)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return _refusal(error, method)
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            wrapped: Any = self._stream(handler, method)
        else:
            make = grpc.stream_unary_rpc_method_handler
            wrapped = self._unary(handler, method)
        return make(wrapped, response_serializer=handler.response_serializer)  # type: ignore[no-any-return]

    def _unary(
        self,
        handler: Any,  # noqa: ANN401  # an untyped named tuple
        method: str,
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        admission, decode, rpc = self._admission, decoder(handler, method), self._admission.rpc(method)

        def call(serialized: Iterator[bytes], context: grpc.ServicerContext) -> object:
            try:
                if rpc.is_counted:
                    admission.check_rate(context.peer())
                with admission.request(context.peer(), context.cancel, is_large=rpc.has_large_request):
                    request = _only(_decoded(serialized, decode), method, context)
                with admission.unary_call(method):
                    return handler.unary_unary(request, context)
            except grpc.RpcError:  # the caller is gone
                raise
            except Exception as error:  # noqa: BLE001  # every error must become a status
                self._end_call(error, context, method)

        return call

    def _stream(
        self,
        handler: Any,  # noqa: ANN401  # an untyped named tuple
        method: str,
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        admission, decode, rpc = self._admission, decoder(handler, method), self._admission.rpc(method)
        behaviour = handler.stream_stream or handler.unary_stream
        has_many_requests = handler.request_streaming

        def stream(serialized: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                admission.check_rate(context.peer())
                with admission.request(context.peer(), context.cancel, is_large=has_many_requests):
                    requests = _decoded(serialized, decode)
                    request = _begun(requests) if has_many_requests else _only(requests, method, context)
                with admission.stream(method, context.peer(), context.cancel) as place:
                    responses: Any = behaviour(request, context)
                    try:
                        yield from responses if rpc.is_unhurried else _taken_in_time(responses, place)
                    finally:
                        responses.close()
            except grpc.RpcError as error:  # the caller has disconnected and reads no status
                let_go(error)
            except Exception as error:  # noqa: BLE001  # every error must become a status
                self._end_call(error, context, method)

        return stream

    def _end_call(self, error: Exception, context: grpc.ServicerContext, method: str) -> NoReturn:
        code = context.code()  # type: ignore[attr-defined]  # the stubs do not have it
        if isinstance(error, NotImplementedError) and code is grpc.StatusCode.UNIMPLEMENTED:
            # From a generated servicer without this method. If raised, the log would have a traceback for each such
            # call.
            context.abort(code, str(error))
        status = self._admission.status_of(error, method, context.peer())
        context.abort_with_status(rpc_status.to_status(status))


def _refusal(error: UnauthenticatedError | PermissionDeniedError, method: str) -> "grpc.RpcMethodHandler[Any, Any]":
    """Returns a handler that refuses a call of any kind before it reads a request."""

    def refuse(requests: object, context: grpc.ServicerContext) -> NoReturn:
        del requests
        _log.info("refused %s from %s: %s", method, shown_peer(context.peer()), type(error).__name__)
        context.abort_with_status(rpc_status.to_status(error_to_status(error)))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _decoded(serialized: Iterator[bytes], decode: Callable[[bytes], Any] | None) -> Iterator[Any]:
    return serialized if decode is None else map(decode, serialized)


def _only(requests: Iterator[Any], method: str, context: grpc.ServicerContext) -> object:
    request = next(requests, None)
    if request is None:
        raise no_request(method, context.peer())
    return request


def _begun(requests: Iterator[Any]) -> Iterator[Any]:
    """Waits for the first request, and returns an iterator over all requests."""
    first = next(requests, None)
    return iter(()) if first is None else itertools.chain((first,), requests)


def _taken_in_time(responses: Iterator[Any], place: CallPlace) -> Iterator[Any]:
    for response in responses:
        place.expect("accept a message")
        yield response
        place.settle()
