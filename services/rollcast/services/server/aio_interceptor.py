"""Makes the checks of `Admission` for every call of an asyncio server."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from rollcast.services.errors import PermissionDeniedError, RollcastError, UnauthenticatedError
from rollcast.services.limits.stream_gate import CallPlace
from rollcast.services.server.admission import Admission, decoder, no_request
from rollcast.services.wire.error_status import error_to_status

_LATE: Final = "ended by the server: its client did not send or accept a message in time"

# The value of a read after the last message.
_EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not have it
# Generic in the stubs only.
_Context = Any


class AioCallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Makes the checks of `Admission`, then runs the call's handler, in the event loop.

    Handlers may be coroutines that read and write through the context, or asynchronous generators. They get decoded
    requests, and a context. Its `write` ends the call if the client does not read a message in time.

    Args:
        admission: The checks.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401  # an untyped named tuple
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
            return _refusal(error)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            wrapped: Any = self._stream(handler, method)
        else:
            make = grpc.stream_unary_rpc_method_handler
            wrapped = self._unary(handler, method)
        return make(wrapped, response_serializer=handler.response_serializer)

    def _unary(self, handler: Any, method: str) -> Callable[[object, _Context], Awaitable[Any]]:  # noqa: ANN401
        admission, decode, rpc = self._admission, decoder(handler, method), self._admission.rpc(method)

        async def call(_requests: object, context: _Context) -> object:
            async def serve(cancel: Callable[[], None]) -> object:
                peer = context.peer()
                if rpc.is_counted:
                    admission.check_rate(peer)
                with admission.request(peer, cancel, is_large=rpc.has_large_request):
                    request = await _read(context, decode)
                if request is _EOF:
                    raise no_request(method, peer)
                with admission.unary_call(method):
                    return await handler.unary_unary(request, context)

            return await self._guarded(serve, context, method)

        return call

    def _stream(self, handler: Any, method: str) -> Callable[[object, _Context], Awaitable[None]]:  # noqa: ANN401
        admission, decode = self._admission, decoder(handler, method)
        behaviour = handler.stream_stream or handler.unary_stream
        has_many_requests = handler.request_streaming

        async def stream(_requests: object, context: _Context) -> None:
            async def serve(cancel: Callable[[], None]) -> None:
                peer = context.peer()
                admission.check_rate(peer)
                with admission.request(peer, cancel, is_large=has_many_requests):
                    first = await _read(context, decode)
                if first is _EOF:
                    raise no_request(method, peer)
                with admission.stream(method, peer, cancel) as place:
                    taken = _TakenInTime(context, place)
                    responses = behaviour(_all(first, context, decode) if has_many_requests else first, taken)
                    if not inspect.isasyncgen(responses):
                        await responses
                        return
                    async for response in responses:
                        await taken.write(response)

            await self._guarded(serve, context, method)

        return stream

    async def _guarded(
        self, serve: Callable[[Callable[[], None]], Awaitable[Any]], context: _Context, method: str
    ) -> Any:  # noqa: ANN401  # what the handler returns
        """Serves a call, and converts every error to a status."""
        task, loop, is_late = asyncio.current_task(), asyncio.get_running_loop(), False
        assert task is not None  # gRPC makes one for each call

        def cancel() -> None:
            nonlocal is_late
            is_late = True
            loop.call_soon_threadsafe(task.cancel)

        try:
            return await serve(cancel)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if not is_late:  # the caller has disconnected
                raise
            task.uncancel()
            await context.abort(grpc.StatusCode.CANCELLED, _LATE)
        except Exception as error:  # noqa: BLE001  # every error must become a status
            if isinstance(error, NotImplementedError) and context.code() is grpc.StatusCode.UNIMPLEMENTED:
                # From a generated servicer without this method. Otherwise the log would have a traceback for each such
                # call.
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
            await _abort(context, self._admission.status_of(error, method, context.peer()))


class _TakenInTime:
    """A call's context whose client must read messages in time."""

    def __init__(self, context: _Context, place: CallPlace) -> None:
        self._context = context
        self._place = place

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # all else is the context's
        return getattr(self._context, name)

    async def write(self, message: object) -> None:
        """Sends a message, once the transport accepts it."""
        self._place.expect("accept a message")
        await self._context.write(message)
        self._place.settle()


def _refusal(error: RollcastError) -> Any:  # noqa: ANN401  # an untyped named tuple
    """Returns a handler that refuses a call of any kind before it reads a request."""

    async def refuse(_requests: object, context: _Context) -> None:
        await _abort(context, error_to_status(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(context: _Context, status: status_pb2.Status) -> None:
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)


async def _read(context: _Context, decode: Callable[[bytes], Any] | None) -> Any:  # noqa: ANN401  # any message
    message = await context.read()
    return message if decode is None or message is _EOF else decode(message)


async def _all(first: object, context: _Context, decode: Callable[[bytes], Any] | None) -> AsyncIterator[Any]:
    message = first
    while message is not _EOF:
        yield message
        message = await _read(context, decode)
