"""Admits or refuses calls, by rate and number, and ends those whose requests or answers make no progress."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from rollcast.services.errors import MissingMessageError
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.stream_gate import CallPlace, StreamGate

# Health checks are never refused, however often they come.
_UNCOUNTED: Final = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"})
# Answered at once from memory, so these need no place among the calls that take long.
_PROBES: Final = _UNCOUNTED | {"/rollcast.v1.LearnerService/GetStatus"}
# Requests with tensors or spaces take long on a slow network.
_LARGE_REQUESTS: Final = frozenset(
    {
        "/rollcast.v1.RolloutService/Join",
        "/rollcast.v1.RolloutService/ReportEvaluation",
        "/rollcast.v1.PolicyService/Act",
        "/rollcast.v1.ReplayService/UpdatePriorities",
    }
)
# Readers of these may pause, since that is how they prefetch: each costs one batch, however long it takes.
_UNHURRIED: Final = frozenset({"/rollcast.v1.ReplayService/Sample"})


class AdmissionInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Admits calls. Goes inside `ErrorInterceptor`, so that a refusal is a rich status. Does not count health checks.

    Every method becomes one with a stream of requests: for a unary method gRPC would wait for the request in a thread
    of the pool, without a deadline, before any interceptor runs.

    Args:
        gate: Counts streams and calls, and ends stuck streams.
        half_open: Bounds the calls that wait for their request, which count as neither before it has come.
        rate: Counts calls.
    """

    def __init__(self, gate: StreamGate, half_open: HalfOpenCalls, rate: CallRate) -> None:
        self._gate = gate
        self._half_open = half_open
        self._rate = rate

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
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            wrapped = self._stream(handler.stream_stream or handler.unary_stream, handler.request_streaming, method)
        else:
            make = grpc.stream_unary_rpc_method_handler
            wrapped = self._unary(handler.unary_unary, method)
        return make(  # type: ignore[no-any-return]
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
        is_counted, is_probe, is_large = method not in _UNCOUNTED, method in _PROBES, method in _LARGE_REQUESTS

        def call(requests: Iterator[Any], context: grpc.ServicerContext) -> object:
            if is_counted:
                self._rate.check(context.peer())
            with self._half_open.call(context.peer(), context.cancel, is_large=is_large):
                request = _only(requests, method, context)
            with contextlib.nullcontext() if is_probe else self._gate.unary_call():
                return behaviour(request, context)

        return call

    def _stream(
        self, behaviour: Callable[..., Iterator[Any]], has_many_requests: bool, method: str
    ) -> Callable[..., Iterator[Any]]:
        is_unhurried = method in _UNHURRIED

        def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self._rate.check(context.peer())
            with self._half_open.call(context.peer(), context.cancel, is_large=has_many_requests):
                request = _begun(requests) if has_many_requests else _only(requests, method, context)
            with self._gate.stream(method, context.peer(), context.cancel) as place:
                responses: Any = behaviour(request, context)
                try:
                    yield from responses if is_unhurried else _taken_in_time(responses, place)
                finally:
                    responses.close()

        return stream


def _only(requests: Iterator[Any], method: str, context: grpc.ServicerContext) -> object:
    request = next(requests, None)
    if request is None:
        raise MissingMessageError(
            f"{method} from {context.peer()} came without a request; expected one message; send it"
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
