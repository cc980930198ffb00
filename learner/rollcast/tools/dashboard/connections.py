"""Limits the number and the idle time of connections to the page, so that idle clients do not keep others out."""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Most connections without an open page; a browser opens up to six. One more closes the oldest.
_MAX_CONNECTIONS: Final = 128
# Most open pages, each with a WebSocket. A page takes 0.9 MB.
_MAX_PAGES: Final = 64
# Seconds within which a client has to send its request.
_REQUEST_S: Final = 5.0


class BoundedConnection(H11Protocol):
    """One connection of a browser, in the event loop of the server.

    Invariant: at most 128 connections have no open page, and the server waits for the request of each for at most 5 s.
    At most 64 pages are open.
    """

    _opened_at = 0.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accepts a connection; closes the oldest if there are too many."""
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        others = [other for other in self.connections if isinstance(other, BoundedConnection)]
        if len(others) > _MAX_CONNECTIONS:
            min(others, key=lambda other: other._opened_at).transport.abort()
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._end_expectation()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes received bytes, which may be a part of a request."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self._late is None:
            self._expect_request()
        cycle = self.cycle
        super().data_received(data)
        if self.cycle is not cycle:
            self._end_expectation()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Opens a page, unless the limit of open pages is reached."""
        self._end_expectation()
        n_pages = sum(not isinstance(other, BoundedConnection) for other in self.connections)
        if n_pages < _MAX_PAGES:
            super().handle_websocket_upgrade(event)
            return
        self.logger.warning("%d pages are open; expected at most %d; close some", n_pages, _MAX_PAGES)
        for answer in (h11.Response(status_code=503, headers=[(b"connection", b"close")]), h11.EndOfMessage()):
            self.transport.write(self.conn.send(answer))
        self.transport.close()

    def _expect_request(self) -> None:
        self._late = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _end_expectation(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
