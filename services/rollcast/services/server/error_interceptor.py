"""Turns errors of the tree into rich statuses, wherever in a handler they are raised, and logs any others."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rollcast.services.errors import RollcastError, UnreadableMessageError
from rollcast.services.limits.refusals import Refusals, host_of
from rollcast.services.wire.error_status import error_to_status, let_go

_log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Reports the errors of handlers as rich statuses; wraps the handlers of `AdmissionInterceptor`.

    All of those take a stream of requests. A stream pays for this only at its start and end, since messages are
    delegated with `yield from`. Handlers without serialisers (raw bytes) stay without.

    Args:
        refusals: Notes the errors that a limit caused.
    """

    def __init__(self, refusals: Refusals) -> None:
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
            The wrapped handler; None for an unknown method.
        """
        handler: Any = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        decode = _decoder(handler, method)
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            wrapped: Any = self._wrap_stream(handler.stream_stream, decode, method)
        else:
            make = grpc.stream_unary_rpc_method_handler
            wrapped = self._wrap_unary(handler.stream_unary, decode, method)
        return make(wrapped, response_serializer=handler.response_serializer)  # type: ignore[no-any-return]

    def _wrap_unary(
        self, behaviour: Callable[..., Any], decode: Callable[[Any], Any], method: str
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def call(request: object, context: grpc.ServicerContext) -> object:
            try:
                return behaviour(decode(request), context)
            except grpc.RpcError:  # the caller is gone
                raise
            except Exception as error:  # noqa: BLE001  # every error must become a status
                self._end_call(error, context, method)

        return call

    def _wrap_stream(
        self, behaviour: Callable[..., Any], decode: Callable[[Any], Any], method: str
    ) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
        def stream(request: object, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from behaviour(decode(request), context)
            except grpc.RpcError as error:  # the caller is gone: nobody reads a status
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
            _log.error("%s failed on a request from %s", method, context.peer(), exc_info=error)
            error = RollcastError(
                f"the learner failed on {method}: {type(error).__name__}: {error}; expected no error; see its log"
            )
        if error.limit:
            self._refusals.note(host_of(context.peer()), error.limit)
        context.abort_with_status(rpc_status.to_status(error_to_status(error)))


def _decoder(handler: Any, method: str) -> Callable[[Any], Any]:  # noqa: ANN401  # an untyped named tuple
    """Returns a parser that runs in the handler's own thread, where a malformed request becomes an error of the tree.

    gRPC would parse requests in the one thread that serves all completions, and answer INTERNAL.
    """
    deserializer = handler.request_deserializer
    if deserializer is None:
        return lambda requests: requests

    def decode(serialized: bytes) -> object:
        try:
            return deserializer(serialized)
        except DecodeError as error:
            raise UnreadableMessageError(
                f"{method} got {len(serialized)} bytes that do not parse ({error}); expected its request message; send "
                "the message of rollcast/v1/*.proto; send it again if it was damaged on its way"
            ) from error

    return lambda requests: map(decode, requests)
