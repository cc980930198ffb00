"""Serves HistoryService: shows what a run has done, seen through a Protocol."""

from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from rollcast.services.history.codec import update_to_protos
from rollcast.services.history.history import HistoryUpdate
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.status.status import Phase
from rollcast.services.status.watching import turns
from rollcast.v1 import history_pb2, history_pb2_grpc


class HistorySource(Protocol):
    """The learner as HistoryServicer sees it. Called from many threads."""

    def history(self, after_s: float | None) -> HistoryUpdate:
        """Returns what is new since a time.

        Args:
            after_s: `now_s` of the last update that the caller has; None: all that is remembered, with the run.

        Raises:
            NotReadyError: Training has not started.
        """


class HistoryServicer(history_pb2_grpc.HistoryServiceServicer):
    """Serves those who watch a run.

    Args:
        source: The learner's memory.
        gate: Tells when the server stops; shared with its other services.
        is_over: Returns whether training has ended.
    """

    def __init__(self, source: HistorySource, gate: StreamGate, is_over: Callable[[], bool]) -> None:
        self._source = source
        self._gate = gate
        self._is_over = is_over

    def WatchHistory(  # noqa: N802
        self, request: history_pb2.WatchHistoryRequest, context: grpc.ServicerContext
    ) -> Iterator[history_pb2.WatchHistoryResponse]:
        """Serves rollcast.v1.HistoryService.WatchHistory."""
        after_s: float | None = None
        for _ in turns(request.interval_s, context, self._gate, self._is_over):
            update = self._source.history(after_s)
            after_s = update.now_s
            yield from update_to_protos(update)
            if update.status.phase is Phase.FINISHED:
                return
