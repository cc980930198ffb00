"""Takes the rollouts of an actor behind a relay, whose thread serves all of the relay's actors."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from rollcast.learner.ingest.stream import IntakeStream
from rollcast.services.errors import RollcastError
from rollcast.services.rollouts.activity import ActorActivity
from rollcast.services.rollouts.bundled_stream import Answer
from rollcast.services.rollouts.rollouts import ActorFailure, Rollout, StreamProgress

logger = logging.getLogger(__name__)


class _Submitted(NamedTuple):
    """A rollout that waits for the stream's own thread."""

    rollout: Rollout
    is_active: Callable[[], bool]


class BundledIntakeStream:
    """An actor's stream behind a relay: a `rollcast.services.rollouts.bundled_stream.BundledStream`.

    The relay's thread passes rollouts on itself, and waits for room, while nothing else of the relay is read: they get
    in in the order in which they came. Where a rollout may have to wait for other actors' rollouts, of which the next
    one behind it may be one, or for the disk, which writes those of many at once, the stream has a thread of its own.

    `close` may come from any thread, once; all else from the relay's.

    Args:
        stream: The actor's stream.
        answer: Takes what the learner has for it.
        has_own_thread: Whether it has a thread of its own.
    """

    def __init__(self, stream: IntakeStream, answer: Callable[[Answer], None], *, has_own_thread: bool) -> None:
        self._stream = stream
        self._answer = answer
        self.actor_id = stream.actor_id
        self.incarnation = stream.incarnation
        self.spaces = stream.spaces
        self.n_rollout_steps = stream.n_rollout_steps
        self.n_envs = stream.n_envs
        self.state_size = stream.state_size
        self.frame_stack = stream.frame_stack
        self.activity_interval_s = stream.activity_interval_s
        self._lock = threading.Lock()  # guards the two below
        self._is_passing_on = False
        # how the stream was closed; None: it is open
        self._closed: bool | None = None
        self._submitted: queue.SimpleQueue[_Submitted | None] | None = None
        if has_own_thread:
            self._submitted = queue.SimpleQueue()
            name = f"rollcast-relayed-{self.actor_id}"
            threading.Thread(target=self._run, args=(self._submitted,), name=name, daemon=True).start()
        answer(stream.progress())

    def received(self, serialized: bytes) -> None:
        """Does nothing: a learner passes no message on."""

    def progress(self) -> StreamProgress:
        """Returns what the actor has to know; see `IntakeStream.progress`."""
        return self._stream.progress()

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Passes a rollout on; see `IntakeStream.accept`."""
        return self._stream.accept(rollout, is_active=is_active)

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        """Passes a rollout on, or leaves that to the stream's own thread; the answer is given in either case.

        Args:
            rollout: The rollout.
            is_active: Called now and then during waits; a wait ends once it returns False.
        """
        if self._submitted is None:
            self._pass_on(rollout, is_active)
        else:
            self._submitted.put(_Submitted(rollout, is_active))

    def awaits_message(self, awaits: bool) -> None:
        """Notes whether the stream has nothing to do but to wait; see `IntakeStream.awaits_message`."""
        self._stream.awaits_message(awaits)

    def acted(self, activity: ActorActivity) -> None:
        """Notes how the actor says that it spends its time."""
        self._stream.acted(activity)

    def fail(self, failure: ActorFailure) -> None:
        """Notes why the actor has failed."""
        self._stream.fail(failure)

    def rejected(self, error: RollcastError) -> None:
        """Counts and logs a rollout that did not fit."""
        self._stream.rejected(error)

    def close(self, *, clean: bool) -> None:
        """Closes the actor's stream, once no rollout of it is being passed on. Called once.

        Args:
            clean: True if the actor said goodbye, False if it or its relay was lost.
        """
        with self._lock:
            self._closed = clean
            is_passing_on = self._is_passing_on
        if not is_passing_on:
            self._stream.close(clean=clean)
        if self._submitted is not None:
            self._submitted.put(None)

    def _run(self, submitted: "queue.SimpleQueue[_Submitted | None]") -> None:
        while (item := submitted.get()) is not None:
            self._pass_on(*item)
            del item

    def _pass_on(self, rollout: Rollout, is_active: Callable[[], bool]) -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._is_passing_on = True
        answer: Answer
        try:
            answer = self._stream.accept(rollout, is_active=is_active)
        except RollcastError as error:
            answer = error
        except Exception as error:  # the relay's other actors go on
            logger.exception("a rollout of actor %s could not be passed on", self.actor_id)
            answer = RollcastError(f"the learner failed on a rollout: {error!r}; expected no error; see its log")
        # Before the stream may be closed: a stream that has ended takes no answer.
        self._answer(answer)
        with self._lock:
            self._is_passing_on = False
            closed = self._closed
        if closed is not None:
            self._stream.close(clean=closed)
