"""Serves HistoryService, and defines the interface of its source."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import grpc

from rollcast.services.errors import NotReadyError
from rollcast.services.history.codec import update_to_protos
from rollcast.services.history.history import HistoryUpdate
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.status.status import Phase
from rollcast.services.status.watching import turns
from rollcast.v1 import history_pb2, history_pb2_grpc


class HistorySource(Protocol):
    """The part of a learner that HistoryServicer needs. Many threads call it."""

    @property
    def is_over(self) -> bool:
        """True if training has ended, so the history is complete."""

    def history(self, after_s: float | None) -> HistoryUpdate:
        """Returns the history since a time.

        Args:
            after_s: `now_s` of the caller's last update; None: the whole history, with the run.
        """


class HistoryServicer(history_pb2_grpc.HistoryServiceServicer):
    """Serves monitoring clients.

    Args:
        source: The learner's history.
        gate: Signals that the server stops; shared with the server's other services.
        refusals: Records recently refused or throttled clients, for the status.
    """

    def __init__(self, source: HistorySource, gate: StreamGate, refusals: Refusals) -> None:
        self._source = source
        self._gate = gate
        self._refusals = refusals

    def WatchHistory(  # noqa: N802
        self, request: history_pb2.WatchHistoryRequest, context: grpc.ServicerContext
    ) -> Iterator[history_pb2.WatchHistoryResponse]:
        """Serves rollcast.v1.HistoryService.WatchHistory."""
        after_s: float | None = None
        try:
            for _ in turns(request.interval_s, context, self._gate, self._is_over):
                update = self._update(after_s)
                after_s = update.now_s
                yield from update_to_protos(update)
                if update.status.phase is Phase.FINISHED:
                    return
        except NotReadyError:
            # The server stops: the end of training may be among the last events.
            yield from update_to_protos(self._update(after_s))
            raise

    def _is_over(self) -> bool:
        return self._source.is_over

    def _update(self, after_s: float | None) -> HistoryUpdate:
        update = self._source.history(after_s)
        return dataclasses.replace(update, status=dataclasses.replace(update.status, throttled=self._refusals.lately()))
