"""One actor's rollout stream among those of a relay, on the learner's side."""

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

# The learner's answer to an actor's stream: how far it is, or the error that has ended it.
Answer: TypeAlias = StreamProgress | RollcastError


class BundledStream(RolloutStream, Protocol):
    """One actor's open stream behind a relay as the learner sees it."""

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Takes a rollout; its answer comes later, or before this returns. Does not wait: others are behind it.

        An answer that acknowledges the rollout and gives no credit beyond it is followed by one that does.

        Args:
            rollout: A rollout checked against the agreement. The stream must not use its arrays after its answer.
            is_active: Returns whether the actor's stream is still open; a thread that waits with the rollout has to
                call it at least every second.
        """


class BundleSink(Protocol):
    """The learner as relays see it. Called from many threads."""

    def admit(self, relay: Relay, waiting: Sequence[Relay]) -> int:
        """Admits a relay, and returns the number of the learner's process, as in `JoinAgreement`.

        Args:
            relay: The relay.
            waiting: The relays that wait for it to have a learner.

        Raises:
            NotReadyError: There is no learner: this is a relay without one.
            RefusedError: This is one of these relays: they form a loop.
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
            incarnation: The number of its process.
            relay: The relay that speaks for it.
            peer: The relay's address, as gRPC names it.
            answer: Called with the stream's progress: as soon as it is open, then after each rollout; or with the error
                that ends it. From any thread, in the order of the stream.
            later: Runs a function that does not wait on the relay's answering thread, soon, unless the relay has gone.
                From any thread, also with locks held.
            cancel: Ends the stream from any thread, with an error that asks the actor to join again.

        Raises:
            UnknownActorError: The actor has not joined through this relay.
            ActorReplacedError: A later incarnation has joined.
            NotReadyError: The learner is stopping.
        """


class Bundles(Protocol):
    """A relay's call, as the streams on it see it. Any thread may call."""

    @property
    def max_rollout_bytes(self) -> int:
        """The largest rollout to accept."""

    def answer(self, number: int, answer: Answer) -> None:
        """Sends the relay the learner's answers to a stream."""

    def forget(self, number: int) -> None:
        """Forgets a stream that has ended."""

    def account(self, who: str, is_active: Callable[[], bool]) -> AbstractContextManager[StreamBytes]:
        """Returns an account for the memory of one rollout."""

    def is_active(self) -> bool:
        """Returns whether the call is open. Call it before a wait."""


class _Memory(NamedTuple):
    """The memory of one rollout: an account of its own, which is given back when the rollout is answered."""

    account: AbstractContextManager[StreamBytes]
    in_flight: StreamBytes

    def give_back(self) -> None:
        self.account.__exit__(None, None, None)


class ActorStream:
    """An actor's stream on a relay's call. The thread that reads uses it; any thread may `answer` and `end` it.

    Args:
        number: Its number on the call.
        who: Actor and relay, for messages.
        bundles: The call.
    """

    def __init__(self, number: int, who: str, bundles: Bundles) -> None:
        self.number = number
        self.who = who
        self._bundles = bundles
        self._lock = threading.Lock()  # guards the five below
        self._ended = False
        self._stream: BundledStream | None = None
        # The rollouts that are not answered yet, with the memory that they hold.
        self._held: deque[tuple[int, _Memory]] = deque()
        # The memory of a rollout that has come in part, between two of its messages.
        self._half_sent: _Memory | None = None
        # The order of rollouts; the thread that reads asks it without the lock.
        self._order = StreamOrder(who)
        # Used by the thread that reads only: that memory while a message is read.
        self._receiver: RolloutReceiver | None = None
        self._memory: _Memory | None = None

    @property
    def is_half_sent(self) -> bool:
        """True while a rollout has arrived in part."""
        return self._half_sent is not None

    def opened(self, stream: BundledStream) -> None:
        """Takes the learner's end of the stream, which ends at once if this has ended."""
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
        """Takes a message of the actor; errors are answered, and end the stream."""
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
        """Passes on the learner's answers to the stream; an error, or the end of training, ends it."""
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
            # An actor that was given no credit has nothing to send.
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
        """Ends the stream because another has taken its place."""
        self.answer(
            NotReadyError(f"another stream has taken the place of that of {self.who}; join again to take it back")
        )

    def refused(self, error: RollcastError) -> None:
        """Notes that the relay has refused a message of the actor."""
        stream = self._stream
        if stream is not None:
            stream.rejected(error)

    def end(self, *, clean: bool) -> None:
        """Ends the stream. Does nothing the second time."""
        with self._lock:
            if self._ended:
                return
            self._ended, stream = True, self._stream
            # Both hold this: what has ended is freed at once, and not when garbage is collected.
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
        """Frees the memory of a rollout that has arrived in part."""
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
        """Keeps the memory of what was read until the rollout is passed on or answered; not if the stream has ended.

        Args:
            rollout: The rollout, if it has come whole.
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
        """Refuses a rollout that came before, or for which the actor has no credit: it is not even kept."""
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
