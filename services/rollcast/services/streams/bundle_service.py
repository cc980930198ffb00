"""Serves RelayService: receives the rollout streams of a relay's actors on one call."""

import contextlib
import functools
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from rollcast.services.address import shown_peer
from rollcast.services.errors import (
    InvalidRolloutError,
    LimitExceededError,
    MissingMessageError,
    RollcastError,
    ThrottledError,
)
from rollcast.services.joining.join import Relay
from rollcast.services.joining.join_codec import relay_from_proto
from rollcast.services.limits.bytes_in_flight import BytesInFlight, StreamBytes
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.limits import (
    MAX_ACTOR_ID_LENGTH,
    MAX_BUNDLE_PARTS,
    MAX_OPENINGS_PER_S,
    MAX_RELAYS,
    Limits,
)
from rollcast.services.limits.refusals import Refusals, host_of
from rollcast.services.limits.texts import shortened
from rollcast.services.limits.token_buckets import TokenBuckets
from rollcast.services.streams.bundled_stream import ActorStream, Answer, BundleSink
from rollcast.services.streams.service import progress_to_proto
from rollcast.services.wire.error_status import error_from_status, error_to_status, let_go
from rollcast.services.wire.seal import MessageChain, parse_sealed, seal
from rollcast.v1 import relay_pb2

_log = logging.getLogger(__name__)

_SERVICE: Final = "rollcast.v1.RelayService"
# Seconds after which a waiting thread checks that its call is still open.
_LOOK_S: Final = 0.5
# The number of answers that may wait for the relay. At this number, the servicer stops reading from the relay.
_MAX_ANSWERS: Final = 2 * MAX_BUNDLE_PARTS
# A message of answers ends above this size. A single answer has at most 4 KiB.
_ANSWER_BYTES: Final = 1 << 20
_STATUS_BYTES: Final = 4 << 10
# Seconds between two checks of a relay above its rate; the number of ignored parts that count as an opening.
_PAY_AGAIN_S: Final = 0.05
_PARTS_PER_TOKEN: Final = 64
# Time for the thread that reads a relay's messages to notice that its call has ended.
_JOIN_TIMEOUT_S: Final = 5.0


class BundleServicer:
    """Serves relays. Each call has two threads: a thread of the server answers, and a separate thread reads.

    Args:
        sink: The learner.
        bytes_in_flight: The memory for the rollouts of all streams.
        limits: The server's limits.
        refusals: Records throttled relays.
    """

    def __init__(self, sink: BundleSink, bytes_in_flight: BytesInFlight, limits: Limits, refusals: Refusals) -> None:
        self._sink = sink
        self._bytes_in_flight = bytes_in_flight
        self._max_rollout_bytes = limits.max_rollout_bytes
        self._toll = RelayToll(limits, refusals)
        self._lock = threading.Lock()  # guards the places
        self._places: list[_Place] = []

    def stream_bundles(
        self, requests: Iterator[relay_pb2.StreamBundlesRequest], context: grpc.ServicerContext
    ) -> Iterator[relay_pb2.StreamBundlesResponse]:
        """Serves rollcast.v1.RelayService.StreamBundles."""
        first = next(requests, None)
        if first is None:
            return
        if not first.HasField("open") or first.parts or len(first.waiting) > MAX_RELAYS:
            raise InvalidRolloutError(
                f"a relay's stream began without open, with other parts, or with more than {MAX_RELAYS} waiting "
                "relays; expected the relay's name, and theirs; send these first"
            )
        relay, waiting = relay_from_proto(first.open), tuple(map(relay_from_proto, first.waiting))
        with self._place(context):
            _log.info("relay %s at %s has connected", relay.relay_id, shown_peer(context.peer()))
            chain = MessageChain()
            chain.check(first.digest, first.number)
            bundles = RelayCall(
                self._sink,
                relay,
                context,
                self._bytes_in_flight,
                self._max_rollout_bytes,
                self._toll,
                chain,
            )
            reader = threading.Thread(
                target=bundles.read_bundles, args=(requests,), name="rollcast-bundles", daemon=True
            )
            try:
                with self._sink.admit(relay, waiting, bundles.fail) as learner_nonce:
                    yield relay_pb2.StreamBundlesResponse(learner_nonce=learner_nonce, number=1)
                    reader.start()
                    for number, response in enumerate(bundles.answers(), 2):
                        response.number = number
                        yield response
            finally:
                bundles.end()
                # After an error of this side, the relay's messages end only when this method has ended.
                if reader.ident is not None and not bundles.has_failed:
                    reader.join(_JOIN_TIMEOUT_S)
                _log.info("relay %s has disconnected", relay.relay_id)

    @contextmanager
    def _place(self, context: grpc.ServicerContext) -> Iterator[None]:
        place = _Place(host_of(context.peer()), context.cancel)
        with self._lock:
            displaced = self._displaced_by(place)
            self._places.append(place)
        if displaced is not None:
            _log.warning("ended the call of a relay at %s for one at %s (max_relays)", displaced.host, place.host)
            displaced.cancel()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):  # another relay took its place
                self._places.remove(place)

    def _displaced_by(self, place: "_Place") -> "_Place | None":
        """Makes a place for a relay, if necessary by ending the newest call of the address with the most calls."""
        if len(self._places) < MAX_RELAYS:
            return None
        n_places = Counter(taken.host for taken in self._places)
        host, n_most = n_places.most_common(1)[0]
        if n_most <= n_places[place.host] + 1:
            raise ThrottledError(
                f"{len(self._places)} relays are already connected; expected at most {MAX_RELAYS}; use fewer relays",
                limit="max_relays",
            )
        displaced = next(taken for taken in reversed(self._places) if taken.host == host)
        self._places.remove(displaced)
        return displaced


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """The place of one relay's call."""

    host: str
    cancel: Callable[[], None]


class RelayToll:
    """Limits the openings and errors on all relays' calls, by address and by actor, like calls.

    Args:
        limits: `calls_per_second` and `calls_per_second_per_host`.
        refusals: Records throttled relays.
    """

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self._rate = CallRate(limits)
        self._refusals = refusals
        self._actors = TokenBuckets(limits.calls_per_second, MAX_OPENINGS_PER_S, burst_s=2.0)

    def is_paid(self, peer: str) -> bool:
        """Counts an opening or an error at a relay's address. Returns False while the address is above its rate."""
        if limit := self._rate.exceeded(peer):
            self._refusals.note(host_of(peer), limit)
        return not limit

    def may_open(self, actor_id: str, who: str) -> bool:
        """Counts an opening of an actor's stream. Returns whether the opening is allowed."""
        if self._actors.take(actor_id) is None:
            return True
        self._refusals.note(who, "max_openings_per_s")
        return False


class RelayCall:
    """One relay's call. One thread reads, another iterates over `answers`. Any thread may call `answer` and `later`.

    Args:
        sink: The learner.
        relay: The relay.
        context: The call.
        bytes_in_flight: Memory for the rollouts of all streams.
        max_rollout_bytes: The largest rollout to accept.
        toll: Limits openings and errors.
        chain: Checks the relay's messages.
    """

    def __init__(
        self,
        sink: BundleSink,
        relay: Relay,
        context: grpc.ServicerContext,
        bytes_in_flight: BytesInFlight,
        max_rollout_bytes: int,
        toll: RelayToll,
        chain: MessageChain,
    ) -> None:
        self._sink = sink
        self._toll = toll
        self._relay = relay
        self._context = context
        self._bytes_in_flight = bytes_in_flight
        self.max_rollout_bytes = max_rollout_bytes
        self._chain = chain
        self._changed = threading.Condition()  # guards all below
        self._streams: dict[int, ActorStream] = {}
        self._answers: deque[tuple[int, Answer]] = deque()
        self._to_do: deque[Callable[[], None]] = deque()
        self._ended = False
        self._error: Exception | None = None
        # Openings and errors above the rate. Reading stops until the rate allows them.
        self._n_unpaid = 0
        # Only the reading thread uses it.
        self._last_number = 0
        self._n_ignored = 0
        self._half_sent: ActorStream | None = None
        self._reader = 0

    def read_bundles(self, requests: Iterator[relay_pb2.StreamBundlesRequest]) -> None:
        """Takes the relay's messages until the call ends. A separate thread runs this method."""
        self._reader = threading.get_ident()
        try:
            for request in requests:
                self.take(request)
                self._wake()
                self._await_room()
                if self._ended:
                    return
        except grpc.RpcError as error:
            let_go(error)
            _log.debug("the stream of relay %s broke", self._relay.relay_id)
        except Exception as error:  # noqa: BLE001  # the answering thread raises it, for CallInterceptor
            self.fail(error)
        finally:
            if self._half_sent is not None:
                self._half_sent.drop_half_sent()
            self.end()

    def answers(self) -> Iterator[relay_pb2.StreamBundlesResponse]:
        """Yields the learner's answers until the call ends. A message contains all waiting answers."""
        while True:
            self._do_all()
            with self._changed:
                while not self._answers and not self._to_do and not self._ended:
                    self._changed.wait(_LOOK_S)
                if self._to_do and not self._ended:
                    continue
                answers = self._take_answers()
                if not answers:
                    if self._error is not None:
                        raise self._error
                    return
                self._changed.notify_all()  # the reading thread may wait for room
            response = relay_pb2.StreamBundlesResponse()
            for number, answer in answers:
                part = response.parts.add(stream=number)
                if isinstance(answer, RollcastError):
                    part.status = error_to_status(answer).SerializeToString()
                else:
                    part.progress.CopyFrom(progress_to_proto(answer))
            yield response

    def answer(self, number: int, answer: Answer) -> None:
        """Sends an answer. The reading thread's answers to one message travel in one message."""
        with self._changed:
            self._answers.append((number, answer))
            self._n_unpaid += isinstance(answer, RollcastError)
            if threading.get_ident() != self._reader:
                self._changed.notify_all()

    def later(self, do: Callable[[], None]) -> None:
        """Runs a function on the answering thread. Any thread may call this method, even with locks held."""
        with self._changed:
            self._to_do.append(do)
            self._changed.notify_all()

    def _do_all(self) -> None:
        """Runs the queued functions, and sends their answers together."""
        while self._to_do:
            self._to_do.popleft()()

    def forget(self, number: int) -> None:
        """Removes an ended stream."""
        with self._changed:
            self._streams.pop(number, None)

    def account(self, who: str, is_active: Callable[[], bool]) -> AbstractContextManager[StreamBytes]:
        """Returns an account for the memory of one rollout."""
        return self._bytes_in_flight.stream(
            who, cancel=self._context.cancel, is_active=lambda: is_active() and self.is_active()
        )

    def is_active(self) -> bool:
        """Sends waiting answers, and returns whether the call is open. Call this before a wait."""
        self._wake()
        return not self._ended and self._context.is_active()

    @property
    def has_failed(self) -> bool:
        """True if an error of this side has ended the call."""
        return self._error is not None

    def fail(self, error: Exception) -> None:
        """Ends the call with an error, unless it has ended. Any thread may call this method."""
        with self._changed:
            if not self._ended:
                self._error = error
        self.end()

    def end(self) -> None:
        """Ends the call, and the streams of its actors. Idempotent."""
        with self._changed:
            self._ended = True
            streams = tuple(self._streams.values())
            self._changed.notify_all()
        for stream in streams:
            stream.end(clean=False)

    def _wake(self) -> None:
        with self._changed:
            if self._answers:
                self._changed.notify_all()

    def _await_room(self) -> None:
        with self._changed:
            while len(self._answers) > _MAX_ANSWERS and not self._ended:
                self._changed.wait(_LOOK_S)

    def _take_answers(self) -> list[tuple[int, Answer]]:
        """Returns the answers of the next message. Called with the lock held."""
        taken: list[tuple[int, Answer]] = []
        n_bytes = 0
        while self._answers and len(taken) < MAX_BUNDLE_PARTS and n_bytes < _ANSWER_BYTES:
            taken.append(self._answers.popleft())
            n_bytes += _STATUS_BYTES if isinstance(taken[-1][1], RollcastError) else 0
        return taken

    def take(self, request: relay_pb2.StreamBundlesRequest) -> None:
        """Takes a message of the relay. Only the reading thread calls it.

        Args:
            request: The message. An error of one actor's stream becomes an answer, and ends only that stream.

        Raises:
            DamagedMessageError: The message lacks a required digest, or the previous message was lost.
            LimitExceededError: The message has too many parts.
            InvalidRolloutError: The message is out of order.
        """
        self._chain.check(request.digest, request.number)
        if len(request.parts) > MAX_BUNDLE_PARTS:
            raise LimitExceededError(
                f"a message of relay {self._relay.relay_id!r} has {len(request.parts)} parts; expected at most "
                f"{MAX_BUNDLE_PARTS}; send more messages",
                limit="max_bundle_parts",
            )
        if not request.parts:
            self._ignored(_PARTS_PER_TOKEN)
            self._pay()
        for part in request.parts:
            kind = part.WhichOneof("part")
            if kind == "message":
                self._receive(part.stream, part.message)
            elif kind == "open":
                self._open(part)
            elif kind == "ended":
                self._end_stream(part)
            else:
                raise InvalidRolloutError(
                    f"relay {self._relay.relay_id!r} sent an empty part of stream {part.stream}; expected open, a "
                    "message or the end; install the same rollcast on both sides"
                )
            if self._n_unpaid:
                self._pay()

    def _open(self, part: relay_pb2.UpwardPart) -> None:
        if part.stream <= self._last_number:
            raise InvalidRolloutError(
                f"relay {self._relay.relay_id!r} opened stream {part.stream} after {self._last_number}; expected "
                "increasing numbers; use each once"
            )
        self._last_number = part.stream
        with self._changed:
            self._n_unpaid += 1
        actor_id = shortened(part.open.actor_id, MAX_ACTOR_ID_LENGTH)
        who = f"actor {actor_id!r} behind relay {self._relay.relay_id!r} at {shown_peer(self._context.peer())}"
        if not self._toll.may_open(actor_id, who):
            error = ThrottledError(
                f"{who} opens more than {MAX_OPENINGS_PER_S} streams a second; expected fewer; join again with backoff",
                limit="max_openings_per_s",
            )
            self.answer(part.stream, error)
            return
        stream = ActorStream(part.stream, who, self)
        with self._changed:
            if self._ended:
                return
            self._streams[part.stream] = stream
        try:
            opened = self._sink.open_bundled(
                actor_id,
                part.open.incarnation,
                relay=self._relay,
                peer=self._context.peer(),
                answer=stream.answer,
                later=self.later,
                cancel=stream.cancel,
            )
        except RollcastError as error:
            stream.answer(error)
        else:
            stream.opened(opened)

    def _pay(self) -> None:
        """Waits while the openings and errors of this address exceed the rate. Only the reading thread calls it."""
        self._wake()
        while self._n_unpaid and not self._ended:
            is_paid = self._toll.is_paid(self._context.peer())
            with self._changed:
                if is_paid:
                    self._n_unpaid -= 1
                else:
                    self._changed.wait(_PAY_AGAIN_S)

    def _ignored(self, n_parts: int) -> None:
        """Counts ignored parts. A few are normal after an actor's stream has ended."""
        self._n_ignored += n_parts
        if self._n_ignored >= _PARTS_PER_TOKEN:
            self._n_ignored -= _PARTS_PER_TOKEN
            with self._changed:
                self._n_unpaid += 1

    def _receive(self, number: int, message: bytes) -> None:
        stream = self._streams.get(number)
        half_sent = self._half_sent
        if half_sent is not None and half_sent is not stream:
            half_sent.drop_half_sent()
            half_sent.answer(
                MissingMessageError(
                    f"a rollout of {half_sent.who} stopped in the middle for another actor's; expected its messages in "
                    "sequence; join again and send it again"
                )
            )
        if stream is not None:
            stream.receive(message)
        else:
            self._ignored(1)
        self._half_sent = stream if stream is not None and stream.is_half_sent else None

    def _end_stream(self, part: relay_pb2.UpwardPart) -> None:
        stream = self._streams.get(part.stream)
        if stream is None:
            self._ignored(1)
            return
        if self._half_sent is stream:
            stream.drop_half_sent()
            self._half_sent = None
        if part.ended.status:
            stream.refused(error_from_status(part.ended.status, stream.who))
        stream.end(clean=part.ended.clean)


def add_relay_service(servicer: BundleServicer, server: grpc.Server) -> None:
    """Adds RelayService to a server.

    Args:
        servicer: The servicer.
        server: The server, not yet started.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "StreamBundles": grpc.stream_stream_rpc_method_handler(
            servicer.stream_bundles,
            request_deserializer=functools.partial(parse_sealed, relay_pb2.StreamBundlesRequest),
            response_serializer=lambda response: seal(response.SerializeToString()),
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
