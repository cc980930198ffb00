"""One actor's rollout stream behind a relay, on the learner's side."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from rollcast.services.errors import LimitExceededError, NotReadyError, RollcastError
from rollcast.services.joining.join import Relay
from rollcast.services.limits.bytes_in_flight import StreamBytes
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.receiver import RolloutReceiver, RolloutStream
from rollcast.services.streams.stream_order import StreamOrder

# The learner's answer to an actor's stream: the progress of the stream, or the error that has ended it.
Answer: TypeAlias = StreamProgress | RollcastError


class BundledStream(RolloutStream, Protocol):
    """The learner's view of one actor's open stream behind a relay."""

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Takes a rollout without waiting, because other actors' rollouts follow. The answer may arrive at any time.

        If an answer acknowledges the rollout without further credit, another answer with credit follows.

        Args:
            rollout: A rollout checked against the agreement. The stream must not use the rollout's arrays after its
                answer.
            is_active: Returns whether the actor's stream is still open. A waiting thread must call it at least every
                second.
        """


class BundleSink(Protocol):
    """The part of a learner that relays need. Many threads call it."""

    def admit(
        self, relay: Relay, waiting: Sequence[Relay], lose: Callable[[RollcastError], None]
    ) -> AbstractContextManager[int]:
        """Admits a relay until the end of the block.

        Args:
            relay: The relay.
            waiting: The relays that wait until this relay reaches a learner.
            lose: Ends the relay's call with an error. Called if this process is a relay and loses its learner.

        Returns:
            A block with the nonce of the learner's process, as in `JoinAgreement`.

        Raises:
            NotReadyError: This process is a relay without a learner.
            RefusedError: This process is one of these relays, so the relays form a loop.
        """

    def open_bundled(
        self,
        actor_id: str,
        incarnation: int,
        *,
        relay: Relay,
        peer: str,
        answer: Callable[[Answer], None],
        later: Callable[[Callable[[], None]], None],
        cancel: Callable[[], None],
    ) -> BundledStream:
        """Opens the stream of an actor that has joined through a relay.

        Args:
            actor_id: The actor.
            incarnation: The incarnation of the actor's process.
            relay: The relay that forwards the actor's rollouts.
            peer: The relay's address, in gRPC's format.
            answer: Called with the stream's progress at the opening and after each rollout, or with the error that ends
                the stream. Any thread may call it, in the order of the stream.
            later: Schedules a function that does not wait, on the relay's answering thread; no effect if the relay has
                disconnected. Any thread may call it, even with locks held.
            cancel: Ends the stream from any thread, with an error that asks the actor to join again.

        Raises:
            UnknownActorError: The actor has not joined through this relay.
            ActorReplacedError: A later incarnation has joined.
            NotReadyError: The learner is stopping.
        """


class Bundles(Protocol):
    """A relay's call, as its streams use it. Safe from any thread."""

    @property
    def max_rollout_bytes(self) -> int:
        """The largest rollout to accept."""

    def answer(self, number: int, answer: Answer) -> None:
        """Sends the learner's answer to a stream to the relay."""

    def forget(self, number: int) -> None:
        """Removes an ended stream."""

    def account(self, who: str, is_active: Callable[[], bool]) -> AbstractContextManager[StreamBytes]:
        """Returns an account for the memory of one rollout."""

    def is_active(self) -> bool:
        """Returns whether the call is open. Call this before a wait."""


class _Memory(NamedTuple):
    """The memory of one rollout: a separate account, which the answer to the rollout releases."""

    account: AbstractContextManager[StreamBytes]
    in_flight: StreamBytes

    def give_back(self) -> None:
        self.account.__exit__(None, None, None)


class ActorStream:
    """An actor's stream on a relay's call. The reading thread uses it. Any thread may call `answer` and `end`.

    Args:
        number: The stream's number on the call.
        who: The actor and the relay, for messages.
        bundles: The call.
    """

    def __init__(self, number: int, who: str, bundles: Bundles) -> None:
        self.number = number
        self.who = who
        self._bundles = bundles
        self._lock = threading.Lock()  # guards the five fields below
        self._ended = False
        self._stream: BundledStream | None = None
        # The rollouts without an answer, with the memory that they hold.
        self._held: deque[tuple[int, _Memory]] = deque()
        # The memory of a rollout that has arrived in part, between two of its messages.
        self._half_sent: _Memory | None = None
        # The order of rollouts. The reading thread uses it without the lock.
        self._order = StreamOrder(who)
        # Only the reading thread uses these: the receiver, and the memory of a message while it is read.
        self._receiver: RolloutReceiver | None = None
        self._memory: _Memory | None = None

    @property
    def is_half_sent(self) -> bool:
        """True if a rollout has arrived only in part."""
        return self._half_sent is not None

    def opened(self, stream: BundledStream) -> None:
        """Takes the learner's side of the stream. If this stream has ended, closes that side at once."""
        with self._lock:
            ended = self._ended
            if not ended:
                self._stream = stream
        if ended:
            stream.close(clean=False)
            return
        receiver = RolloutReceiver(
            stream, max_rollout_bytes=self._bundles.max_rollout_bytes, hold=self._hold, sealed=False
        )
        self._receiver = receiver
        receiver.await_message()

    def receive(self, message: bytes) -> None:
        """Takes a message of the actor. An error becomes an answer, and ends the stream."""
        receiver, stream = self._receiver, self._stream
        if receiver is None or stream is None or self._ended:
            return
        try:
            self._memory = self._take_half_sent()
            rollout = receiver.receive(message)
            if rollout is not None:
                self._check_order(rollout.sequence, stream)
            self._keep_memory(rollout)
            if receiver.has_failed:
                self.end(clean=True)
            elif rollout is not None:
                stream.submit(rollout, is_active=lambda: not self._ended and self._bundles.is_active())
        except RollcastError as error:
            if self._memory is not None:
                self._memory.give_back()
            self.answer(error)

    def answer(self, answer: Answer) -> None:
        """Sends the learner's answer to the relay. An error, or the end of training, ends the stream."""
        if self._ended:
            return
        progress = None if isinstance(answer, RollcastError) else answer
        with self._lock:
            if progress is not None:
                order = self._order
                order.acknowledged = max(order.acknowledged, progress.acknowledged_sequence)
                order.credit = max(order.credit, progress.credit_sequence)
            while progress is not None and self._held and self._held[0][0] <= progress.acknowledged_sequence:
                self._held.popleft()[1].give_back()
            # An actor without credit has no rollout to send.
            has_credit = progress is None or progress.credit_sequence > progress.acknowledged_sequence
            awaits_message = not self._held and has_credit
        receiver = self._receiver
        if awaits_message and receiver is not None:
            receiver.await_message()
        self._bundles.answer(self.number, answer)
        if progress is None:
            self.end(clean=False)
        elif progress.end_of_training:
            self.end(clean=True)

    def cancel(self) -> None:
        """Ends the stream because another stream has replaced it."""
        self.answer(NotReadyError(f"another stream has replaced that of {self.who}; join again to replace it"))

    def refused(self, error: RollcastError) -> None:
        """Notes that the relay has refused a message of the actor."""
        stream = self._stream
        if stream is not None:
            stream.rejected(error)

    def end(self, *, clean: bool) -> None:
        """Ends the stream. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended, stream = True, self._stream
            # Both objects refer to this stream. Without these references, its memory is freed at once, not at a garbage
            # collection.
            self._stream = self._receiver = None
            held = [memory for _, memory in self._held]
            self._held.clear()
        self._bundles.forget(self.number)
        if stream is not None:
            stream.close(clean=clean)
        for memory in held:
            memory.give_back()
        self.drop_half_sent()

    def drop_half_sent(self) -> None:
        """Frees the memory of a partial rollout."""
        memory = self._take_half_sent()
        if memory is not None:
            memory.give_back()

    def _take_half_sent(self) -> _Memory | None:
        if self._half_sent is None:
            return None
        with self._lock:
            memory, self._half_sent = self._half_sent, None
            return memory

    def _keep_memory(self, rollout: Rollout | None) -> None:
        """Keeps the memory of a message until its rollout is submitted or answered, unless the stream has ended.

        Args:
            rollout: The rollout, if it is complete.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        with self._lock:
            ended = self._ended
            if rollout is None and not ended:
                self._half_sent = memory
            elif rollout is not None and not ended:
                self._held.append((rollout.sequence, memory))
        if ended:
            memory.give_back()

    def _check_order(self, sequence: int, stream: BundledStream) -> None:
        """Refuses a repeated rollout, or a rollout without credit, before it is stored."""
        try:
            self._order.receive(sequence)
        except LimitExceededError as error:
            stream.rejected(error)
            raise

    def _hold(self, n_bytes: int, /, *, completes: bool) -> None:
        if self._memory is None:
            account = self._bundles.account(self.who, lambda: not self._ended)
            self._memory = _Memory(account, account.__enter__())
        self._memory.in_flight.hold(n_bytes, completes=completes)
