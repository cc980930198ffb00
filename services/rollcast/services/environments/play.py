"""Serves the environments of one client over any transport: reads turns, and writes actions."""

import asyncio
import contextlib
import functools
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeAlias

from rollcast.services.address import shown_peer
from rollcast.services.environments.codec import (
    EpisodeValueNames,
    actions_to_bytes,
    farewell_to_bytes,
    request_from_bytes,
    welcome_to_bytes,
)
from rollcast.services.environments.dialled import EnvironmentActions, EnvironmentSink, Farewell
from rollcast.services.environments.dialled_stream import DialledStream
from rollcast.services.environments.latencies import Latencies
from rollcast.services.errors import DamagedMessageError, LimitExceededError, MissingMessageError, RollcastError
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES
from rollcast.services.wire.seal import N_DIGEST_BYTES, StreamSeals, seal

_log = logging.getLogger(__name__)

# Returns the next message of the client, serialised; None once it has closed its side.
Receive: TypeAlias = Callable[[], Awaitable[bytes | None]]
# Sends a serialised message as soon as the transport accepts it.
Send: TypeAlias = Callable[[bytes], Awaitable[None]]

_NO_NAME: Final = "client-"
# The resolution of a loop's timers, in seconds.
_TIMER_S: Final = 0.001


class LoopCalls:
    """Runs functions in the thread of an event loop, and wakes the loop once for many functions. Safe from any thread.

    Functions run in the order of the calls; at once, if the loop's own thread calls. Each wake-up of the loop is a
    system call, and the acting thread answers many clients at the same time.

    Args:
        loop: The running event loop. Its thread makes the object.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # guards the flag
        self._is_woken = False

    def __call__(self, function: Callable[[], None]) -> None:
        """Schedules a function; no effect if the loop is closed."""
        self._calls.append(function)
        if threading.get_ident() == self._thread:
            self._run_all()
            return
        with self._lock:
            if self._is_woken:
                return
            self._is_woken = True
        with contextlib.suppress(RuntimeError):  # closed: its streams have ended
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        with self._lock:
            self._is_woken = False
        self._run_all()

    def _run_all(self) -> None:
        while self._calls:
            self._calls.popleft()()


class LoopAlarm:
    """Calls a function in the thread of an event loop at the earliest time that was set. Safe from any thread.

    The loop's own timers round up to a millisecond, the time of several passes. Therefore the alarm lets the loop turn
    without sleeping for the last millisecond.

    Args:
        loop: The running event loop.
        calls: Runs functions in the loop.
        function: The function, which may set the alarm again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: LoopCalls, function: Callable[[], None]) -> None:
        self._loop = loop
        self._calls = calls
        self._function = function
        # Only the loop uses these.
        self._rings_at = math.inf
        self._handle: asyncio.Handle | None = None

    def __call__(self, at: float) -> None:
        """Sets the alarm for a time of `time.monotonic`."""
        self._calls(functools.partial(self._set, at))

    def _set(self, at: float) -> None:
        if at < self._rings_at:
            if self._handle is not None:
                self._handle.cancel()
            self._rings_at = at
            self._wait()

    def _wait(self) -> None:
        left_s = self._rings_at - time.monotonic()
        if left_s <= _TIMER_S:
            self._handle = self._loop.call_soon(self._ring)
        else:
            self._handle = self._loop.call_later(left_s - _TIMER_S, self._ring)

    def _ring(self) -> None:
        if time.monotonic() < self._rings_at:
            self._wait()
            return
        self._rings_at, self._handle = math.inf, None
        self._function()


class EnvironmentPlay:
    """Serves the streams of one server, which share limits and counts. Only the server's event loop uses it.

        play = EnvironmentPlay(sink, LoopCalls(asyncio.get_running_loop()))
        await play(receive, send, "ipv4:10.0.0.7:50411")      # for each stream, over gRPC or a WebSocket

    Args:
        sink: Receives the clients and their turns.
        calls: Runs functions in the loop.
        latencies: Records the time from each environment's turn to the answer, measured at the transport.
        max_message_bytes: The largest message, in bytes.
    """

    def __init__(
        self,
        sink: EnvironmentSink,
        calls: LoopCalls,
        *,
        latencies: Latencies | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._sink = sink
        self._calls = calls
        self._latencies = latencies or Latencies()
        self._max_message_bytes = max_message_bytes
        self._names = EpisodeValueNames()
        self._numbers = itertools.count(1)

    async def __call__(self, receive: Receive, send: Send, peer: str, *, first: bytes | None = None) -> None:
        """Serves the environments of one client, until either side ends.

        Args:
            receive: Reads from the client. Cancelled at the end.
            send: Writes to the client, even while a call of `receive` waits.
            peer: The client's address, for logs.
            first: The client's first message, if the caller has already read it.

        Raises:
            RollcastError: The client broke a rule, the sink refused the client, or the sink ended the stream with an
                error. Send the error to the client, and close the connection.
        """
        if first is None:
            first = await receive()
        if first is None:
            raise MissingMessageError(f"{shown_peer(peer)} closed its side before hello; expected it first; send it")
        stream, seals = DialledStream(self._names), StreamSeals()
        hello = stream.hello(request_from_bytes(seals.open(self._checked(first))))
        client = _Client(hello.client or f"{_NO_NAME}{next(self._numbers)}", stream, self._calls, self._latencies)
        stream.named(client.name)
        self._sink.open(hello, client)
        _log.info(
            "%s dialled in from %s with %d environments%s",
            client.name,
            shown_peer(peer),
            hello.n_envs,
            f", {hello.software}" if hello.software else "",
        )
        reason = "its connection was lost"
        tasks = (
            asyncio.ensure_future(self._read(receive, client, stream, seals)),
            asyncio.ensure_future(client.write(_sealing(send) if seals.is_sealed else send, self._max_message_bytes)),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # An error of the client is more informative than a failed write to the client.
            reason = next(task for task in tasks if task.done()).result()
        except RollcastError as error:
            reason = str(error)
            if isinstance(error, DamagedMessageError):  # the client did nothing wrong
                _log.warning("client %r must dial in again: %s", client.name, error)
            raise
        finally:
            tasks[0].cancel()
            # Not cancelled: gRPC cannot end a call whose first message is incomplete, so the client would keep waiting.
            client.stop_writing()
            # Before any wait, because a stopping server may cancel a wait, too.
            self._sink.leave(client, reason)
            _log.info("%s is gone: %s", client.name, reason)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, receive: Receive, client: "_Client", stream: DialledStream, seals: StreamSeals) -> str:
        """Delivers turns until the client closes its side; returns the reason for the end."""
        while (message := await receive()) is not None:
            turns = stream.turns(request_from_bytes(seals.open(self._checked(message))))
            if not client.is_welcome:
                raise MissingMessageError(
                    f"client {client.name!r} sent turns before the server's welcome; expected it to wait; read the "
                    "first answer, then send turns"
                )
            now = time.monotonic()
            for turn in turns:
                client.asked_at[turn.environment] = now
            self._sink.take(client, turns)
        return "it closed its side"

    def _checked(self, message: bytes) -> bytes:
        if len(message) > self._max_message_bytes:
            raise LimitExceededError(
                f"a message has {len(message)} bytes; expected at most {self._max_message_bytes}; send the turns of "
                "fewer environments at once, or make observations smaller",
                limit="max_message_bytes",
            )
        return message


def _sealing(send: Send) -> Send:
    """Returns `send` for messages that lack their digests."""

    def sealed(message: bytes) -> Awaitable[None]:
        return send(seal(message))

    return sealed


class _Answer:
    """Actions of one policy version that wait to be written."""

    __slots__ = ("actions", "policy_version", "progress")

    def __init__(self, actions: Sequence[EnvironmentActions], policy_version: int, progress: float) -> None:
        self.actions = list(actions)
        self.policy_version = policy_version
        self.progress = progress


class _Client:
    """A `DialledClient` over one stream. Any thread may call the methods of that protocol.

    Args:
        name: The client's name.
        stream: Checks the client's messages.
        calls: Runs functions in the stream's event loop.
        latencies: Records the waiting times of the client's environments.

    Attributes:
        is_welcome: Whether the client may send turns. Set in the loop.
        asked_at: The monotonic time of the last turn of each environment.
    """

    def __init__(self, name: str, stream: DialledStream, calls: LoopCalls, latencies: Latencies) -> None:
        self._name = name
        self._stream = stream
        self._calls = calls
        self._latencies = latencies
        self.is_welcome = False
        self.asked_at: dict[int, float] = {}
        # Messages to be written. Only the loop uses them and the fields below.
        self._seeds: tuple[int, ...] | None = None
        self._answers: deque[_Answer] = deque()
        self._end: RollcastError | Farewell | None = None
        self._is_over = False
        self._has_more = asyncio.Event()

    @property
    def name(self) -> str:
        """The client's name."""
        return self._name

    def welcome(self, seeds: Sequence[int]) -> None:
        """Allows the client to begin; see `DialledClient.welcome`."""

        def note() -> None:
            self._seeds = tuple(seeds)
            self._has_more.set()

        self._calls(note)

    def answer(self, actions: Sequence[EnvironmentActions], *, policy_version: int, progress: float) -> None:
        """Sends actions; see `DialledClient.answer`."""
        answer = _Answer(actions, policy_version, progress)

        def note() -> None:
            self._answers.append(answer)
            self._has_more.set()

        self._calls(note)

    def end(self, reason: RollcastError | Farewell) -> None:
        """Ends the client's stream; see `DialledClient.end`."""

        def note() -> None:
            self._end = self._end or reason
            self._has_more.set()

        self._calls(note)

    def stop_writing(self) -> None:
        """Makes `write` return after the message that it is writing. Called in the loop."""
        self._is_over = True
        self._has_more.set()

    async def write(self, send: Send, max_message_bytes: int) -> str:
        """Writes answers until the sink ends the stream; returns the reason.

        Raises:
            RollcastError: The sink ended the stream with this error.
        """
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            if self._seeds is not None and not self._is_over:
                message = welcome_to_bytes(self.name, self._seeds, max_message_bytes)
                self._seeds, self.is_welcome = None, True
                await send(message)
            while self._answers and not self._is_over:
                for message in self._next_answer(max_message_bytes - N_DIGEST_BYTES):
                    await send(message)
            if self._is_over:
                return ""
            if isinstance(self._end, Farewell):
                await send(farewell_to_bytes(self._end))
                return self._end.reason
            if self._end is not None:
                raise self._end

    def _next_answer(self, max_message_bytes: int) -> Iterator[bytes]:
        """Encodes the next actions, together with later actions of the same policy."""
        first, now = self._answers.popleft(), time.monotonic()
        actions = first.actions
        while self._answers and self._answers[0].policy_version == first.policy_version:
            actions += self._answers.popleft().actions
        encoded = []
        for environment, chosen in actions:
            agents = self._stream.answer(environment)
            encoded.append(self._stream.codec.actions(environment, agents, chosen))
            self._latencies.note(now - self.asked_at[environment])
        return actions_to_bytes(encoded, first.policy_version, first.progress, max_message_bytes)
