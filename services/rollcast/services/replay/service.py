"""Serves ReplayService: sends batches and receives priorities. Defines the interfaces of the replay buffer."""

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
    """A source of batches of one size, for one stream. Only the stream's thread calls it."""

    def next(self, *, timeout_s: float, is_active: Callable[[], bool]) -> ReplayBatch:
        """Draws a batch.

        Args:
            timeout_s: The longest wait for entries and the limiter, in seconds.
            is_active: Returns whether the client is still connected. Call this at least every second while waiting.

        Returns:
            The batch, which is valid until the next call.

        Raises:
            InvalidInputError: The buffer has too few entries, or its limiter never allows so large a batch.
            NotReadyError: The buffer or its limiter released no batch in time.
        """


class ReplaySource(Protocol):
    """The part of a substep's replay buffer that ReplayServicer needs. Many threads call it."""

    def info(self) -> ReplayInfo:
        """Returns the state of the buffer."""

    def batches(self, batch_size: int) -> BatchSource:
        """Allocates memory for batches of one size, and returns their source.

        Args:
            batch_size: B, unchecked, from the request.

        Raises:
            InvalidInputError: B is below 1.
            LimitExceededError: A batch of this size exceeds the limit in bytes.
        """

    def update_priorities(self, keys: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> int:
        """Sets priorities.

        Args:
            keys: `[N]`, the keys of the entries.
            priorities: `[N]`, with unchecked values.

        Returns:
            The number of ignored keys: the buffer no longer has their entries.

        Raises:
            InvalidInputError: A priority is invalid. The buffer then sets no priority.
        """

    def reset(self) -> None:
        """Removes every entry."""


class ReplayServicer:
    """Serves a replay buffer to remote learners.

    A stream draws the next batch when gRPC has taken the last batch, so flow control alone determines the prefetching.
    A reader that pauses occupies one thread, the memory of one batch, and its flow-control window.

    Args:
        sources: The replay buffers, by substep key.
        gate: Signals that the server stops; shared with the server's other services.
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
        """Returns the buffer for a request.

        Raises:
            InvalidInputError: No buffer has this key, or the key is empty and there are several buffers.
        """
        if not substep_key and len(self._sources) == 1:
            return next(iter(self._sources.values()))
        source = self._sources.get(substep_key)
        if source is None:
            raise InvalidInputError(
                f"substep_key is {quoted(substep_key)}; expected one of {list(self._sources)}, because each substep "
                "has a separate replay buffer; name one"
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
