"""Sends the rollouts of many actors to a learner: a relay's side of StreamBundles."""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import grpc

from rollcast.services.errors import NotReadyError, ProtocolMismatchError, RollcastError
from rollcast.services.joining.join import Relay
from rollcast.services.joining.join_codec import relay_to_proto
from rollcast.services.limits.limits import MAX_BUNDLE_PARTS
from rollcast.services.rollouts.rollouts import StreamProgress, progress_fields
from rollcast.services.streams.bundled_stream import Answer
from rollcast.services.wire.error_status import (
    error_from_rpc,
    error_from_status,
    error_to_status,
    errors_of_calls,
    parse_response,
)
from rollcast.services.wire.seal import MessageChain, seal
from rollcast.v1 import relay_pb2, rollout_pb2

_METHOD: Final = "/rollcast.v1.RelayService/StreamBundles"
# A bundle ends above this size. Later parts travel in the next bundle.
BUNDLE_BYTES: Final = 1 << 20
# The seconds that a message that is not urgent waits for an urgent message.
_UNHURRIED_S: Final = 0.5
# Seconds after which gRPC's sending thread, with nothing to send, checks that its call is still open.
_LOOK_S: Final = 1.0
# Seconds for the learner's answer to the opening. The learner answers at once, unless one of the two messages is lost.
_OPEN_TIMEOUT_S: Final = 15.0
# The same for an actor's stream: the learner may wait 10 s for an older one, and after 15 s the actor opens another.
_ACTOR_TIMEOUT_S: Final = 12.0


class _Waiting(NamedTuple):
    """A part that waits for the next bundle."""

    part: relay_pb2.UpwardPart
    n_bytes: int = 0
    is_rollout: bool = False


class BundleLink:
    """An open stream of bundles. One thread calls `run`; any thread may call the other methods.

    Invariant: the parts of one actor's stream are sent in the order of the calls. No other message comes between the
    messages of one `send`. A stream that has received an error, or the end of training, is dropped and gets no further
    answer. If the learner answers nothing while it owes the answer to an opening, a message was lost: the link ends.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        relay: This relay.
        waiting: The relays that wait until this relay reaches a learner.
        wait_s: The longest time that a rollout waits for the learner's answer to the previous bundle, in seconds.
            Meanwhile, other rollouts may join its bundle, so a busy learner gets larger bundles.
    """

    def __init__(
        self, channel: grpc.Channel, target: str, relay: Relay, *, waiting: Iterable[Relay] = (), wait_s: float = 0.0
    ) -> None:
        self._target = target
        self._wait_s = wait_s
        self._changed = threading.Condition()  # guards all below
        self._parts: deque[_Waiting] = deque()
        # when the last bundle was sent, and the stream of its last rollout; None: the learner has answered this rollout
        self._left_at = 0.0
        self._awaited: int | None = None
        # when the first waiting part arrived, if no waiting part is urgent
        self._unhurried_since: float | None = None
        self._n_bytes = 0
        self._answers: dict[int, Callable[[Answer], None]] = {}
        self._last_number = 0
        self._closed = False
        self._is_open = False
        self._opens_by = time.monotonic() + _OPEN_TIMEOUT_S
        # the streams whose opening was sent and not answered, and since when the learner has owed and said nothing
        self._unanswered: set[int] = set()
        self._silent_since = 0.0
        self._is_unanswered = False
        self._cancelled = False
        self.n_bundles = 0
        # Without serialisers, because the requests are already serialised, and this class detects damage in responses.
        stream_bundles = channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)
        opening = relay_pb2.StreamBundlesRequest(
            open=relay_to_proto(relay), waiting=map(relay_to_proto, waiting), number=1
        )
        with errors_of_calls(target):
            self._call: Any = stream_bundles(self._requests(opening))
        self._call.add_callback(self.close)

    @property
    def is_open(self) -> bool:
        """True if the learner has answered and the stream has not ended."""
        with self._changed:
            return self._is_open and not self._closed

    def open_stream(self, actor_id: str, incarnation: int, answer: Callable[[Answer], None]) -> int:
        """Opens an actor's stream.

        Args:
            actor_id: The actor, which has joined.
            incarnation: The incarnation of the actor's process.
            answer: The thread in `run` calls it with the stream's progress, and with the error that ends the stream, if
                any.

        Returns:
            The stream's number.

        Raises:
            NotReadyError: The link has ended.
        """
        opening = rollout_pb2.OpenStream(actor_id=actor_id, incarnation=incarnation)
        with self._changed:
            self._check_open()
            self._last_number += 1
            number = self._last_number
            self._answers[number] = answer
            self._queue(_Waiting(relay_pb2.UpwardPart(stream=number, open=opening)))
        return number

    def send(self, number: int, messages: Sequence[bytes], *, is_rollout: bool = True) -> None:
        """Queues all messages of an actor's rollout, or one other message, and returns at once.

        Args:
            number: The actor's stream. Messages on an ended stream are dropped.
            messages: The unchanged messages of the actor.
            is_rollout: False: the messages are not urgent, and the learner does not answer them.

        Raises:
            NotReadyError: The link has ended.
        """
        with self._changed:
            self._check_open()
            if number not in self._answers:
                return
            for message in messages:
                part = relay_pb2.UpwardPart(stream=number, message=message)
                self._queue(_Waiting(part, len(message), is_rollout), hurries=is_rollout)

    def end_stream(self, number: int, *, clean: bool, refusal: RollcastError | None = None) -> None:
        """Reports the end of an actor's stream. No effect if the learner has ended it.

        Args:
            number: The stream.
            clean: Whether the actor closed its stream itself, without an error.
            refusal: The error with which the relay refused a message of the actor; None: no refusal.
        """
        end = relay_pb2.StreamEnd(clean=clean)
        if refusal is not None:
            end.status = error_to_status(refusal).SerializeToString()
        with self._changed:
            self._unanswered.discard(number)
            if self._answers.pop(number, None) is not None and not self._closed:
                self._queue(_Waiting(relay_pb2.UpwardPart(stream=number, ended=end)))

    def run(self, on_open: Callable[[int], None]) -> None:
        """Reads and delivers the learner's answers until the stream ends.

        Args:
            on_open: Called at the learner's first answer, with the nonce of the learner's process.

        Raises:
            LearnerUnreachableError: The connection broke: reconnect with backoff.
            NotReadyError: The learner is stopping, or a message was damaged or lost: reconnect with backoff.
            ProtocolMismatchError: The learner is too old for relays.
            RollcastError: The learner refused a message, or the relay.
        """
        try:
            chain = MessageChain()
            for serialized in self._call:
                response = parse_response(relay_pb2.StreamBundlesResponse, serialized)
                chain.check(response.digest, response.number)
                if not self._is_open:
                    with self._changed:
                        self._is_open = True
                    on_open(response.learner_nonce)
                self.take(response)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ProtocolMismatchError(
                    f"the learner at {self._target} does not serve relays; expected one that serves "
                    f"{_METHOD}; install the same rollcast on both sides"
                ) from error
            if self._is_unanswered:
                timeout_s = _ACTOR_TIMEOUT_S if self._is_open else _OPEN_TIMEOUT_S
                raise NotReadyError(
                    f"the learner at {self._target} has not answered a relay within {timeout_s:.0f} s; expected an "
                    "answer at once; a message was lost: reconnect with backoff"
                ) from error
            if not self._cancelled:
                raise error_from_rpc(error, self._target) from error
        finally:
            self.close()
            self._call.cancel()
            self._end_all(NotReadyError(f"the stream to {self._target} has ended; join again with backoff"))

    def take(self, response: relay_pb2.StreamBundlesResponse) -> None:
        """Delivers the learner's answers. Only the thread in `run` calls it."""
        self._silent_since = time.monotonic()
        for part in response.parts:
            self._hand_on(part)

    def close(self) -> None:
        """Ends this side of the stream after the queued messages. `run` continues until the learner ends the stream."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the stream at once. `run` then returns without an error."""
        self._cancelled = True
        self.close()
        self._call.cancel()

    def _check_open(self) -> None:
        """Raises if the link has ended. Called with the lock held."""
        if self._closed:
            raise NotReadyError(
                f"the relay has no stream to its learner at {self._target} now; expected one; join again with backoff"
            )

    def _hand_on(self, part: relay_pb2.DownwardPart) -> None:
        answer: Answer
        if part.HasField("progress"):
            answer = StreamProgress(**progress_fields(part.progress))
            is_last = answer.end_of_training
        else:
            answer, is_last = error_from_status(part.status, self._target), True
        with self._changed:
            self._unanswered.discard(part.stream)
            if part.stream == self._awaited:
                self._awaited = None
                if self._parts:
                    self._changed.notify_all()
            on_answer = self._answers.pop(part.stream, None) if is_last else self._answers.get(part.stream)
        if on_answer is not None:
            on_answer(answer)

    def _end_all(self, error: RollcastError) -> None:
        with self._changed:
            answers = tuple(self._answers.values())
            self._answers.clear()
            self._parts.clear()
        for on_answer in answers:
            on_answer(error)

    def _requests(self, opening: relay_pb2.StreamBundlesRequest) -> Iterator[bytes]:
        """Yields the serialised bundles. A thread of gRPC iterates over them."""
        yield seal(opening.SerializeToString())
        for number in itertools.count(2):
            if not (parts := self._next()):
                break
            yield seal(relay_pb2.StreamBundlesRequest(parts=parts, number=number).SerializeToString())
        if self._is_unanswered:
            self._call.cancel()

    def _next(self) -> list[relay_pb2.UpwardPart]:
        """Waits for the parts of the next bundle. Empty at the end, or if the learner has not answered in time."""
        with self._changed:
            while not self._parts:
                if self._closed:
                    return []
                if time.monotonic() >= self._answers_by():
                    self._is_unanswered = True
                    return []
                self._changed.wait(_LOOK_S)
            while not self._closed and (left_s := self._leaves_at() - time.monotonic()) > 0:
                self._changed.wait(left_s)
            parts: list[relay_pb2.UpwardPart] = []
            n_bytes = 0
            while self._parts and len(parts) < MAX_BUNDLE_PARTS and n_bytes < BUNDLE_BYTES:
                part, n_next, is_rollout = self._parts[0]
                # One message of an actor may be nearly as large as gRPC's largest message.
                if parts and n_bytes + n_next > BUNDLE_BYTES:
                    break
                parts.append(part)
                self._parts.popleft()
                if part.HasField("open") and part.stream in self._answers:
                    self._silent_since = self._silent_since if self._unanswered else time.monotonic()
                    self._unanswered.add(part.stream)
                n_bytes += n_next
                self._awaited = part.stream if is_rollout else self._awaited
            self._n_bytes -= n_bytes
            self._left_at = time.monotonic()
            self._unhurried_since = None
            self.n_bundles += 1
            return parts

    def _queue(self, waiting: "_Waiting", *, hurries: bool = True) -> None:
        """Queues a part, and wakes the sending thread if the bundle is now due earlier. Called with the lock held."""
        before = self._leaves_at() if self._parts else math.inf
        if hurries:
            self._unhurried_since = None
        elif not self._parts:
            self._unhurried_since = time.monotonic()
        self._parts.append(waiting)
        self._n_bytes += waiting.n_bytes
        if self._leaves_at() < before:
            self._changed.notify_all()

    def _answers_by(self) -> float:
        """Returns the time at which the learner must have answered. Called with the lock held."""
        if not self._is_open:
            return self._opens_by
        return self._silent_since + _ACTOR_TIMEOUT_S if self._unanswered else math.inf

    def _leaves_at(self) -> float:
        """Returns the time at which the waiting parts are due. Called with the lock held."""
        if self._n_bytes >= BUNDLE_BYTES:
            return 0.0
        if self._unhurried_since is not None:
            return self._unhurried_since + (_UNHURRIED_S if self._wait_s else 0.0)
        return 0.0 if self._awaited is None else self._left_at + self._wait_s
