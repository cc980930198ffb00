"""Receives the rollouts of one stream: checks their order, passes them on, and acknowledges them."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.destination import QueueingDestination, RolloutDestination
from rollcast.learner.queueing.room import Turn
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.records import ActorRecord
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.round_places import Place
from rollcast.learner.serving.stream_state import StreamState
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import (
    NotReadyError,
    RollcastError,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinedActor
from rollcast.services.limits.limits import ACTIVITY_INTERVAL_S, LONGEST_ACTIVITY_INTERVAL_S
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress

logger = logging.getLogger(__name__)

# The number of actors that report every `ACTIVITY_INTERVAL_S`; further ones report less often.
_OFTEN_REPORTING: Final = 32


class WriteAheadLog(Protocol):
    """A log on the disk that keeps rollouts before their acknowledgement."""

    def write(
        self, rollout: Rollout, record: ActorRecord, encoder: RolloutEncoder, *, is_active: Callable[[], bool]
    ) -> bool:
        """Writes a rollout, and waits until it is on the disk.

        Args:
            rollout: The rollout.
            record: Its actor.
            encoder: The encoder of its stream.
            is_active: Called repeatedly during the wait; the wait ends once it returns False.

        Returns:
            False if the rollout must not be acknowledged, because the log was closed or `is_active` returned False.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """

    def discard(self, rollout: Rollout) -> None:
        """Withdraws a written rollout that will not be acknowledged."""


class IntakeCounts:
    """Counts over all streams of a learner. Thread-safe.

    Attributes:
        duplicates: The number of rollouts that arrived again after a reconnect and were dropped.
        rejected: The number of rollouts that were refused as invalid.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both counts
        self.duplicates = 0
        self.rejected = 0

    def add_duplicate(self) -> None:
        """Counts a rollout that was dropped as a duplicate."""
        with self._lock:
            self.duplicates += 1

    def add_rejected(self) -> None:
        """Counts a rollout that was refused."""
        with self._lock:
            self.rejected += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """The parts that all streams of a learner share.

    Attributes:
        registry: The actors that have joined.
        destination: Takes accepted rollouts.
        durable: Keeps rollouts on the disk before they are acknowledged; None for no log.
        rule: The rule for credits.
        rollout_shape: The shape of the rollouts of an actor that takes the learner's number of environments.
        run_history: Records the actors' activity; None: no recording.
        counts: Duplicates and rejections.
        ended: Set once training has ended.
        closing: Set once the learner closes all streams, so that their ends are no losses.
    """

    registry: ActorRegistry
    destination: RolloutDestination
    durable: WriteAheadLog | None
    rule: CreditRule
    rollout_shape: RolloutShape
    run_history: RunHistory | None = None
    counts: IntakeCounts = field(default_factory=IntakeCounts)
    ended: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def queue(self) -> QueueingDestination | None:
        """The destination, if rollouts wait only for room in the destination; else None."""
        waits_for_others = self.durable is not None or self.rule.rounds is not None
        return self.destination if isinstance(self.destination, QueueingDestination) and not waits_for_others else None

    def activity_interval_s(self, record: ActorRecord) -> float:
        """Returns the seconds between two reports of an actor's time; 0: no reports.

        Args:
            record: The actor. Actors behind a relay report least often. The interval of others grows with the slot.
        """
        if self.run_history is None:
            return 0.0
        if record.offer.via:
            return LONGEST_ACTIVITY_INTERVAL_S
        return min(max(ACTIVITY_INTERVAL_S, record.slot / _OFTEN_REPORTING), LONGEST_ACTIVITY_INTERVAL_S)


class IntakeStream:
    """One open stream: a `rollcast.services.streams.service.RolloutStream`. Used by the stream's thread.

    Invariant: only the newest of an actor's streams passes rollouts on. A stream may be replaced while it passes a
    rollout on. If this rollout has arrived, the new stream acknowledges it from the start. If not, it never arrives.

    Args:
        parts: The parts that all streams share.
        record: The actor.
        cancel: Ends the stream; identifies it in the registry.
    """

    def __init__(self, parts: SharedParts, record: ActorRecord, cancel: Callable[[], None]) -> None:
        self._parts = parts
        self._record = record
        self._cancel = cancel
        self._encoder = RolloutEncoder()  # for the log
        self.joined = JoinedActor(
            actor_id=record.actor_id,
            incarnation=record.incarnation,
            rollout_shape=parts.rollout_shape.of_envs(record.offer.n_envs),
            activity_interval_s=parts.activity_interval_s(record),
        )
        # The actor chooses the substep of its next rollout, so room is reserved for the largest.
        shape = self.joined.rollout_shape
        self._n_trajectories = max(shape.step_shape(key)[1] for key in shape.spaces)
        rule = parts.rule
        self._state = StreamState(
            f"actor {record.actor_id!r}",
            self._n_trajectories,
            acknowledged=record.acknowledged_sequence,
            plays_ahead=rule.plays_ahead,
            in_step=rule.in_step,
            credit_lag=rule.credit_lag,
            place=None if rule.rounds is None else rule.rounds.book(self._n_trajectories, recall=cancel),
        )
        self._give_credit(record.acknowledged_sequence)
        self._awaiting_since: float | None = None
        # the time since which it passes a rollout on and reads no message; None: it reads
        self.held_since: float | None = None
        record.awaiting_s = self._awaiting_s
        # ends the actor's lane; None: no history is kept
        self._disconnect: Callable[[], None] | None = None
        if parts.run_history is not None:
            self._disconnect = parts.run_history.connected(self.joined.actor_id, lambda: self.held_since)

    def received(self, serialized: bytes) -> None:
        """Does nothing: a learner forwards no messages."""

    def progress(self) -> StreamProgress:
        """Returns the actor's acknowledgement, its credit, and whether training has ended."""
        parts = self._parts
        return self._state.progress(parts.rule.policy_version(), has_ended=parts.ended.is_set())

    def take_policy(self, *, holds_version: int | None = None) -> EncodedPolicy | None:
        """Returns the newest policy for the current answer, if the actor lacks this version and the policy is small."""
        policy = self._parts.rule.take_policy(
            self.joined.actor_id, at_least=self._state.min_policy_version, holds_version=holds_version
        )
        if policy is not None:
            # A newer version may be on its way already, and would be sent in addition.
            self._state.wanted_version = policy.version
        return policy

    def awaits_message(self, awaits: bool) -> None:
        """Records whether the stream only waits for the actor's next message.

        If it does, the actor gets the policy for its credit, unless the answer contained it. If the policy were sent
        earlier, the sending thread would compete with the thread that still sends the answer.
        """
        now = time.monotonic()
        self._awaiting_since, self.held_since = (now, None) if awaits else (None, now)
        wanted, self._state.wanted_version = self._state.wanted_version, None
        if wanted is not None:
            self._parts.rule.want_policy(self.joined.actor_id, wanted)

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Passes a rollout on, and waits while the destination is full. Drops a rollout that was accepted before.

        With rounds, the actor gets no credit until it has places for another rollout; see `await_credit`.

        Args:
            rollout: The rollout.
            is_active: Called repeatedly during the wait; the wait ends once it returns False.

        Raises:
            DuplicateSequenceError: This stream has sent the rollout before.
            MissingMessageError: Earlier rollouts are missing.
            LimitExceededError: The actor had no credit for it.
            NotReadyError: The learner is stopping, or the disk is full or has failed.
        """
        if not self._state.order.receive(rollout.sequence):
            self._parts.counts.add_duplicate()
            return self.progress()
        if self._parts.ended.is_set():
            return self.progress()
        self._parts.rule.pause_policies(self.joined.actor_id)
        if not self._pass_on(rollout, is_active):
            self._check_ended(rollout)
            return self.progress()
        self._give_credit(rollout.sequence)
        rounds, place = self._parts.rule.rounds, self._state.place
        if rounds is not None and place is not None and not place.is_held:
            # The actor has used the places that it had.
            self._state.place = rounds.ask(self._n_trajectories, played_version=rollout.policy_version)
        return self.progress()

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Waits until the actor has places for its next rollout. The progress then contains the policy version.

        Args:
            is_active: Called repeatedly during the wait; the wait ends once it returns False.
        """
        rounds, place, ended = self._parts.rule.rounds, self._state.place, self._parts.ended
        if rounds is not None and place is not None and not place.version:
            rounds.wait(place, is_active=lambda: is_active() and not ended.is_set())
        return self.progress()

    def offer(self, rollout: Rollout, queue: QueueingDestination, decided: Callable[[], None]) -> Turn | None:
        """Passes a rollout on like `accept`, but does not wait for room.

        Args:
            rollout: The rollout.
            queue: The destination.
            decided: See `RolloutQueue.offer`.

        Returns:
            The rollout's turn, if it waits. Call `finish` when the turn is over, before the stream is closed. None if
            the rollout was taken or dropped.

        Raises:
            RollcastError: See `accept`.
        """
        if not self._state.order.receive(rollout.sequence):
            self._parts.counts.add_duplicate()
            return None
        if self._parts.ended.is_set():
            return None
        self._parts.rule.pause_policies(self.joined.actor_id)
        # Held only for a moment: this stream was opened after the actor's previous stream had released the lock.
        self._record.accepting.acquire()
        turn = None
        if self._parts.registry.is_current(self._record, self._cancel):
            turn = queue.offer(rollout, decided=decided, n_reserved=self._state.spend())
        if turn is None or turn.is_in is not None:
            self.finish(rollout, is_in=turn is not None and bool(turn.is_in))
            return None
        return turn

    def finish(self, rollout: Rollout, *, is_in: bool) -> None:
        """Records that the turn of a rollout is over.

        Args:
            rollout: The rollout.
            is_in: True if the rollout is in the queue.

        Raises:
            NotReadyError: The rollout is not in the queue.
        """
        if is_in:
            self._parts.registry.accepted(self._record, rollout)
        self._record.accepting.release()
        if is_in:
            self._give_credit(rollout.sequence)
        else:
            self._check_ended(rollout)

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        """Stores the actor's report of its time by state. A report does not count as progress."""
        del is_alone
        self._parts.registry.acted(self._record, activity)
        if self._parts.run_history is not None:
            self._parts.run_history.acted(self.joined.actor_id, activity)

    def fail(self, failure: ActorFailure) -> None:
        """Records why the actor has failed, and logs it, unless it fails too often."""
        told = self._parts.registry.failed(self._record, failure)
        if told is not None:
            logger.error("actor %s failed:%s", self.joined.actor_id, told)

    def rejected(self, error: RollcastError) -> None:
        """Counts a refused rollout, and logs it, unless refusals are too frequent."""
        if self._parts.registry.rejected(self._record, self._cancel, error):
            logger.warning("refused a rollout: %s", error)
        self._parts.counts.add_rejected()

    def close(self, *, clean: bool) -> None:
        """Cancels the reservation, and records that the actor is gone.

        Args:
            clean: True if the actor closed the stream, False if its connection broke.
        """
        n_reserved, rounds, place = self._state.spend(), self._parts.rule.rounds, self._state.place
        if n_reserved:
            self._parts.destination.release(n_reserved)
        if rounds is not None and place is not None:
            rounds.give_back(place)
        is_gone = self._parts.registry.close_stream(self._record, self._cancel, clean=clean)
        if self._disconnect is not None:
            self._disconnect()
        if not is_gone:
            return
        if clean or self._parts.ended.is_set():
            logger.info("actor %s left", self.joined.actor_id)
        elif self._parts.closing.is_set():
            logger.info("actor %s is left to the next learner", self.joined.actor_id)
        else:
            logger.warning("actor %s was lost: its connection broke", self.joined.actor_id)

    def _awaiting_s(self) -> float:
        since = self._awaiting_since
        return 0.0 if since is None else time.monotonic() - since

    def _give_credit(self, sequence: int) -> None:
        """Gives the credits of an actor whose rollouts up to a sequence were taken."""
        if self._state.acknowledge(sequence) and self._parts.destination.reserve(self._n_trajectories):
            self._state.reserved()

    def _check_ended(self, rollout: Rollout) -> None:
        """Raises an error for a rollout that was not taken, unless training has ended."""
        if not self._parts.ended.is_set():
            raise NotReadyError(
                f"rollout {rollout.sequence} of actor {self.joined.actor_id!r} was not taken: the learner is stopping, "
                "or the stream broke while it waited for room; join again with backoff and send it again"
            )

    def _pass_on(self, rollout: Rollout, is_active: Callable[[], bool]) -> bool:
        registry, durable = self._parts.registry, self._parts.durable
        with self._record.accepting:
            if not registry.is_current(self._record, self._cancel):
                return False
            if durable is not None and not durable.write(rollout, self._record, self._encoder, is_active=is_active):
                return False
            if not self._parts.destination.put(rollout, is_active=is_active, n_reserved=self._state.spend()):
                if durable is not None:
                    durable.discard(rollout)
                return False
            registry.accepted(self._record, rollout)
            place, rounds = self._state.place, self._parts.rule.rounds
            if rounds is not None and place is not None:
                rounds.played(place, rollout.policy_version)
                if place.is_late:
                    self._note_late(place)
            return True

    def _note_late(self, place: Place) -> None:
        """Warns that other actors have filled the actor's place: the first time, the tenth, the hundredth."""
        record = self._record
        record.n_late += 1
        if not math.log10(record.n_late).is_integer():
            return
        text = (
            f"actor {self.joined.actor_id} delays the others: its rollout took "
            f"{time.monotonic() - place.since:.1f} s, and other actors have filled the batch instead; it has sent "
            f"{record.n_late} such rollouts, and those that arrived after the round are dropped. Give it a faster "
            "machine or fewer environments, stop it, or train with appo, which waits for no actor"
        )
        logger.warning(text)
        if self._parts.run_history is not None:
            self._parts.run_history.note(EventSeverity.WARNING, text, who=self.joined.actor_id)
