"""Streams of actors behind a relay: some share the relay's threads, others need their own thread."""

import contextlib
import functools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rollcast.learner.queueing.destination import QueueingDestination
from rollcast.learner.queueing.room import Turn
from rollcast.learner.serving.stream import IntakeStream
from rollcast.services.errors import RollcastError
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.bundled_stream import Answer

logger = logging.getLogger(__name__)


class _BundledIntakeStream:
    """An actor's stream behind a relay; see `rollcast.services.streams.bundled_stream.BundledStream`.

    `close` may be called once, from any thread. All other methods are called by the relay's threads.

    Args:
        stream: The actor's stream.
        answer: Sends the learner's answers to the actor.
    """

    def __init__(self, stream: IntakeStream, answer: Callable[[Answer], None]) -> None:
        self._stream = stream
        self._answer = answer
        self.joined = stream.joined
        self._lock = threading.Lock()  # guards the two below, and what else may change in a subclass
        # A thread passes a rollout on. After that it takes the next, or closes the stream.
        self._is_busy = False
        # how the stream was closed; None: it is open
        self._closed: bool | None = None
        answer(stream.progress())

    def received(self, serialized: bytes) -> None:
        """Does nothing: a learner forwards no messages."""

    def progress(self) -> StreamProgress:
        """Returns the actor's progress; see `IntakeStream.progress`."""
        return self._stream.progress()

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Passes a rollout on; see `IntakeStream.accept`."""
        return self._stream.accept(rollout, is_active=is_active)

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Waits for the actor's next credit; see `IntakeStream.await_credit`."""
        return self._stream.await_credit(is_active=is_active)

    def awaits_message(self, awaits: bool) -> None:
        """Records whether the stream only waits for the next message; see `IntakeStream.awaits_message`."""
        self._stream.awaits_message(awaits)

    def take_policy(self, *, holds_version: int | None = None) -> None:
        """Returns None: the relay sends policies to its actors."""
        del holds_version

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        """Notes the actor's report of how it spends its time."""
        self._stream.acted(activity, is_alone=is_alone)

    def fail(self, failure: ActorFailure) -> None:
        """Records why the actor has failed."""
        self._stream.fail(failure)

    def rejected(self, error: RollcastError) -> None:
        """Counts and logs a rejected rollout."""
        self._stream.rejected(error)

    def _give_answer(self, make: Callable[[], StreamProgress | None]) -> Answer | None:
        """Sends the answer to a rollout, or the error, and returns it; None: there is no answer yet."""
        answer: Answer | None
        try:
            answer = make()
        except RollcastError as error:
            answer = error
        except Exception as error:  # the relay's other actors continue
            logger.exception("a rollout of actor %s could not be passed on", self.joined.actor_id)
            answer = RollcastError(f"the learner failed on a rollout: {error!r}; expected no error; see its log")
        # Before the stream may be closed: a stream that has ended takes no answer.
        if answer is not None:
            self._answer(answer)
        return answer


class QueuedIntakeStream(_BundledIntakeStream):
    """A stream whose rollouts wait only for room in a queue, without a waiting thread.

    Each rollout waits for its turn, like a rollout of a directly connected actor. The thread that answers the relay
    continues with many rollouts at a time, once their turn has come. The actor's next rollout waits for the previous
    one.

    Args:
        stream: The actor's stream.
        answer: Sends the learner's answers to the actor.
        later: Runs a function on the relay's answering thread.
        destination: The queue.
    """

    def __init__(
        self,
        stream: IntakeStream,
        answer: Callable[[Answer], None],
        later: Callable[[Callable[[], None]], None],
        destination: QueueingDestination,
    ) -> None:
        self._later = later
        self._destination = destination
        # Guarded by the lock: the turn of the rollout that waits, while no thread is busy; the rollouts behind it.
        self._turn: Turn | None = None
        self._next: deque[Rollout] = deque()
        super().__init__(stream, answer)

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Queues a rollout, or registers it as waiting; answers in either case. Never blocks.

        Args:
            rollout: The rollout.
            is_active: Not used, because the call never waits.
        """
        del is_active
        with self._lock:
            if self._closed is not None:
                return
            if self._is_busy or self._turn is not None:
                self._next.append(rollout)
                return
            self._is_busy = True
        self._pass_on(rollout)

    def close(self, *, clean: bool) -> None:
        """Closes the actor's stream, once none of its rollouts is in progress. Called once.

        Args:
            clean: True if the actor closed the stream, False if the actor or its relay was lost.
        """
        with self._lock:
            self._closed = clean
            self._next.clear()
            turn, self._turn = self._turn, None
            is_busy = self._is_busy
        if turn is not None:
            self._end_turn(turn)
        if not is_busy:
            self._stream.close(clean=clean)

    def _pass_on(self, rollout: Rollout | None) -> None:
        """Queues rollouts until one has to wait. Called by the thread that marked the stream as busy."""
        while rollout is not None:
            turn: Turn | None = None

            def offer(rollout: Rollout = rollout) -> StreamProgress | None:
                nonlocal turn
                turn = self._stream.offer(rollout, self._destination, self._decided)
                return self._stream.progress() if turn is None else None

            self._give_answer(offer)
            rollout = self._rest(turn)

    def _decided(self) -> None:
        self._later(self._go_on)

    def _go_on(self) -> None:
        """Continues after a turn."""
        with self._lock:
            turn = self._turn
            if turn is None or turn.is_in is None:
                return
            self._turn, self._is_busy = None, True
        is_in = turn.is_in

        def finish() -> StreamProgress:
            self._stream.finish(turn.rollout, is_in=is_in)
            return self._stream.progress()

        self._give_answer(finish)
        self._pass_on(self._rest(None))

    def _rest(self, turn: Turn | None) -> Rollout | None:
        """Clears the busy mark, and stores the waiting turn, if any; returns the next rollout, or None."""
        with self._lock:
            closed = self._closed
            if closed is None:
                if turn is None and self._next:
                    return self._next.popleft()
                self._turn, self._is_busy = turn, False
        if closed is not None:
            if turn is not None:
                self._end_turn(turn)
            self._stream.close(clean=closed)
        elif turn is not None and turn.is_in is not None:
            # It may have been decided before `_go_on` could see it.
            self._later(self._go_on)
        return None

    def _end_turn(self, turn: Turn) -> None:
        """Ends a turn because the stream is closed."""
        self._destination.withdraw(turn)
        with contextlib.suppress(RollcastError):  # no actor is left to tell
            self._stream.finish(turn.rollout, is_in=bool(turn.is_in))


class _Submitted(NamedTuple):
    """A rollout that waits for the stream's own thread."""

    rollout: Rollout
    is_active: Callable[[], bool]


class ThreadedIntakeStream(_BundledIntakeStream):
    """A stream with a separate thread, which waits until the stream's rollouts are accepted.

    Used if rollouts may wait for other actors' rollouts, for the disk or for a replay buffer. A rollout may
    wait for a rollout that arrives later. The disk writes the rollouts of many actors at once.

    Args:
        stream: The actor's stream.
        answer: Sends the learner's answers to the actor.
    """

    def __init__(self, stream: IntakeStream, answer: Callable[[Answer], None]) -> None:
        super().__init__(stream, answer)
        self._submitted: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"rollcast-relayed-{self.joined.actor_id}", daemon=True).start()

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Passes a rollout to the stream's thread, which answers.

        Args:
            rollout: The rollout.
            is_active: Called repeatedly during waits; a wait ends once it returns False.
        """
        self._submitted.put(_Submitted(rollout, is_active))

    def close(self, *, clean: bool) -> None:
        """Closes the actor's stream, once none of its rollouts is in progress. Called once.

        Args:
            clean: True if the actor closed the stream, False if the actor or its relay was lost.
        """
        with self._lock:
            self._closed = clean
            is_busy = self._is_busy
        if not is_busy:
            self._stream.close(clean=clean)
        self._submitted.put(None)

    def _run(self) -> None:
        while (item := self._submitted.get()) is not None:
            with self._lock:
                if self._closed is not None:
                    return
                self._is_busy = True
            rollout, is_active = item
            answer = self._give_answer(functools.partial(self._stream.accept, rollout, is_active=is_active))
            del item, rollout
            # The rollout is acknowledged by now, so that nothing holds its bytes on their way while its actor waits.
            lacks_credit = isinstance(answer, StreamProgress) and answer.credit_sequence <= answer.acknowledged_sequence
            if lacks_credit:
                self._give_answer(functools.partial(self._stream.await_credit, is_active=is_active))
            with self._lock:
                self._is_busy = False
                closed = self._closed
            if closed is not None:
                self._stream.close(clean=closed)
                return
