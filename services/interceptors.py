"""Errors of the tree become rich statuses, wherever in a handler they are raised; anything else is logged."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from services.error_status import error_to_status
from services.errors import InvalidInputError, RollcastError

_log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Wraps every handler of rollcast's services; health and reflection pass by.

    A stream pays for it once, at its start and end: messages are delegated with `yield from`. Handlers without
    serialisers (raw bytes) stay without.
    """

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
            The handler, wrapped; None for a method that does not exist.
        """
        handler: Any = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/rollcast.v1."):
            return handler  # type: ignore[no-any-return]  # gRPC's handlers are untyped named tuples
        make, behaviour = _shape(handler)
        decode = _decoder(handler, method)
        wrap = _wrap_stream if handler.response_streaming else _wrap_unary
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            wrap(behaviour, decode, method), response_serializer=handler.response_serializer
        )
        return wrapped


def _shape(handler: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:  # noqa: ANN401  # an untyped named tuple
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary


def _decoder(handler: Any, method: str) -> Callable[[Any], Any]:  # noqa: ANN401  # an untyped named tuple
    """Parses requests in the handler's own thread, where a malformed one is an error of the tree.

    gRPC would parse them in the one thread that serves all completions, and answer INTERNAL.
    """
    deserializer = handler.request_deserializer
    if deserializer is None:
        return lambda request: request

    def decode(serialized: bytes) -> object:
        try:
            return deserializer(serialized)
        except DecodeError as error:
            raise InvalidInputError(
                f"{method} got {len(serialized)} bytes that do not parse ({error}); expected its request "
                "message; send the "
                "message of rollcast/v1/*.proto"
            ) from error

    if handler.request_streaming:
        return lambda requests: map(decode, requests)
    return decode


def _wrap_unary(
    behaviour: Callable[..., Any], decode: Callable[[Any], Any], method: str
) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: object, context: grpc.ServicerContext) -> object:
        try:
            return behaviour(decode(request), context)
        except Exception as error:  # noqa: BLE001  # the end of the line: every error must become a status
            _end_call(error, context, method)

    return call


def _wrap_stream(
    behaviour: Callable[..., Any], decode: Callable[[Any], Any], method: str
) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def stream(request: object, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from behaviour(decode(request), context)
        except Exception as error:  # noqa: BLE001  # the end of the line: every error must become a status
            _end_call(error, context, method)

    return stream


def _end_call(error: Exception, context: grpc.ServicerContext, method: str) -> NoReturn:
    if isinstance(error, grpc.RpcError):  # the caller has gone: there is nobody to tell
        raise error
    if not isinstance(error, RollcastError):
        _log.error("%s failed on a request from %s", method, context.peer(), exc_info=error)
        error = RollcastError(
            f"the learner failed on {method}: {type(error).__name__}: {error}; expected no such thing; see its log"
        )
    context.abort_with_status(rpc_status.to_status(error_to_status(error)))
