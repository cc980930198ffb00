"""Serves ReplayService: sends batches, takes priorities; sees the replay buffer through two Protocols."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidInputError, NotReadyError
from rollcast.services.limits.limits import MAX_TIMEOUT_S
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.limits.texts import quoted
from rollcast.services.replay.batch_codec import BatchEncoder
from rollcast.services.replay.codec import priorities_from_proto, replay_info_to_proto
from rollcast.services.replay.replay import ReplayBatch, ReplayInfo
from rollcast.v1 import replay_pb2

_SERVICE: Final = "rollcast.v1.ReplayService"


class BatchSource(Protocol):
    """A source of batches of one size, for one stream. Called from the one thread that serves the stream."""

    def next(self, *, timeout_s: float, is_active: Callable[[], bool]) -> ReplayBatch:
        """Draws a batch.

        Args:
            timeout_s: Seconds to wait for entries and the limiter, at most.
            is_active: Returns whether the caller is still there; to be called at least every second while waiting.

        Returns:
            The batch, valid until the next one is drawn.

        Raises:
            InvalidInputError: The buffer has fewer entries, or its limiter never lets so many out.
            NotReadyError: There was no batch in time.
        """


class ReplaySource(Protocol):
    """The replay buffer of one substep as ReplayServicer sees it. Called from many threads."""

    def info(self) -> ReplayInfo:
        """Returns the state of the buffer."""

    def batches(self, batch_size: int) -> BatchSource:
        """Allocates room for batches of one size, and returns their source.

        Args:
            batch_size: B, as the caller sent it.

        Raises:
            InvalidInputError: B is below 1.
            LimitExceededError: Such a batch is above the limit of bytes.
        """

    def update_priorities(self, keys: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> int:
        """Sets priorities.

        Args:
            keys: `[N]`.
            priorities: `[N]`, not checked yet.

        Returns:
            The number of keys that were ignored, because their entries are gone.

        Raises:
            InvalidInputError: A priority is invalid; then none is set.
        """

    def reset(self) -> None:
        """Removes every entry."""


class ReplayServicer:
    """Serves a replay buffer to learners elsewhere.

    A stream draws its next batch when gRPC has taken the last one: flow control alone decides how much is prefetched. A
    reader that stops costs one thread, the memory of one batch, and the content of its window.

    Args:
        sources: The replay buffers, by substep key.
        gate: Tells when the server stops; shared with its other services.
    """

    def __init__(self, sources: Mapping[str, ReplaySource], gate: StreamGate) -> None:
        self._sources = sources
        self._gate = gate

    def get_replay_info(
        self, request: replay_pb2.GetReplayInfoRequest, context: grpc.ServicerContext
    ) -> replay_pb2.GetReplayInfoResponse:
        """Serves rollcast.v1.ReplayService.GetReplayInfo."""
        del context
        info = self._source_of(request.substep_key).info()
        return replay_pb2.GetReplayInfoResponse(info=replay_info_to_proto(info))

    def sample(self, request: replay_pb2.SampleRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serves rollcast.v1.ReplayService.Sample with serialised messages."""
        if not 0.0 <= request.timeout_s <= MAX_TIMEOUT_S:  # NaN too
            raise InvalidInputError(
                f"timeout_s is {request.timeout_s}; expected 0 to {MAX_TIMEOUT_S:g} s; correct it",
                limit="max_timeout_s" if request.timeout_s > MAX_TIMEOUT_S else "",
            )

        def is_active() -> bool:
            return context.is_active() and not self._gate.stopping

        batches = self._source_of(request.substep_key).batches(request.batch_size)
        encoder = BatchEncoder(deferred=request.may_defer)
        n_sent = 0
        while context.is_active() and not (request.n_batches and n_sent == request.n_batches):
            self._gate.check_running()
            try:
                batch = batches.next(timeout_s=request.timeout_s, is_active=is_active)
            except NotReadyError:
                if not context.is_active():
                    return
                self._gate.check_running()
                raise
            yield from encoder.encode(batch)
            n_sent += 1

    def update_priorities(
        self, request: replay_pb2.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> replay_pb2.UpdatePrioritiesResponse:
        """Serves rollcast.v1.ReplayService.UpdatePriorities."""
        del context
        source = self._source_of(request.substep_key)
        return replay_pb2.UpdatePrioritiesResponse(ignored=source.update_priorities(*priorities_from_proto(request)))

    def reset(self, request: replay_pb2.ResetRequest, context: grpc.ServicerContext) -> replay_pb2.ResetResponse:
        """Serves rollcast.v1.ReplayService.Reset."""
        del context
        self._source_of(request.substep_key).reset()
        return replay_pb2.ResetResponse()

    def _source_of(self, substep_key: str) -> ReplaySource:
        """Returns the buffer that a request names.

        Raises:
            InvalidInputError: There is no such buffer, or the request names none and there are several.
        """
        if not substep_key and len(self._sources) == 1:
            return next(iter(self._sources.values()))
        source = self._sources.get(substep_key)
        if source is None:
            raise InvalidInputError(
                f"substep_key is {quoted(substep_key)}; expected one of {list(self._sources)}, since each substep has "
                "its own replay buffer; name one"
            )
        return source


def add_replay_service(servicer: ReplayServicer, server: grpc.Server) -> None:
    """Adds ReplayService to a server, with a handler that sends serialised batches.

    Args:
        servicer: The servicer.
        server: The server, not yet started.
    """

    def unary(behaviour: Any, name: str) -> "grpc.RpcMethodHandler[Any, Any]":  # noqa: ANN401  # any of the methods
        return grpc.unary_unary_rpc_method_handler(
            behaviour,
            request_deserializer=getattr(replay_pb2, f"{name}Request").FromString,
            response_serializer=getattr(replay_pb2, f"{name}Response").SerializeToString,
        )

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetReplayInfo": unary(servicer.get_replay_info, "GetReplayInfo"),
        "Sample": grpc.unary_stream_rpc_method_handler(
            servicer.sample, request_deserializer=replay_pb2.SampleRequest.FromString
        ),
        "UpdatePriorities": unary(servicer.update_priorities, "UpdatePriorities"),
        "Reset": unary(servicer.reset, "Reset"),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
