"""Keeps the list of actors: their names, slots and incarnations, and the state of each."""

import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.learner.serving.records import ActorRecord, EarlierActor, next_incarnation
from rollcast.learner.serving.tracebacks import Tracebacks
from rollcast.services.address import shown_peer
from rollcast.services.errors import (
    ActorReplacedError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    RefusedError,
    RollcastError,
    ThrottledError,
    UnknownActorError,
    UnreadableMessageError,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.activity import ActorActivity, ActorFailure, cores_between
from rollcast.services.joining.join import JoinOffer, Relay
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_REASON_LENGTH, MAX_REMEMBERED_ACTORS
from rollcast.services.limits.texts import shortened
from rollcast.services.limits.token_buckets import TokenBuckets
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.status.status import ActorInfo, ActorState

# Refusals after which an actor resends the same rollout, because the rollout is valid.
_TRIED_AGAIN: Final = (MissingMessageError, NotReadyError, ThrottledError, UnreadableMessageError)

# The number of logged and noted failures and refusals a second: of all actors, and of each.
_LINES_PER_S: Final = 10.0
_LINES_PER_S_EACH: Final = 1.0
_LINES_BURST_S: Final = 5.0

# States of an actor that should open a stream: for the first time, or again.
_WITHOUT_STREAM: Final = (ActorState.LOST, ActorState.JOINED)

# The number of earlier processes of a name to remember. A supervisor that restarts its actor under one name adds one
# each time. Checkpoints and the log of a durable learner store all of them.
_MAX_REPLACED: Final = 64

# A living actor returns within the first time, unless its machine is disconnected. After the second time, the run does
# not wait for it.
_COMES_BACK_S: Final = 60.0
_GONE_FOR_GOOD_S: Final = 3600.0

# The largest sum of counts that actors report. JSON has it exactly, and so have floats.
_MAX_COUNT: Final = 2**53
_MAY_COME_BACK: Final = (ActorState.LOST, ActorState.FAILED, ActorState.REFUSED)


class ActorRegistry:
    """The list of all actors, with a slot for each. Thread-safe.

    A name keeps its slot once it has opened a stream. If an actor opens no stream within the lease after it joins, a
    new name is forgotten and a known name counts as lost. The name then no longer counts towards `max_actors`. If a
    process joins under a known name with another nonce, that process is a new incarnation, and replaces the previous
    process.

    A process that is killed and restarted may have a new name, such as one with its process id. So an actor that was
    lost a minute ago counts as gone if a new name has joined since, and as many actors stream as before. An actor that
    has been lost for an hour also counts as gone.

    Args:
        max_actors: The number of actors that may be alive at once. Dead actors keep their slots.
        join_lease_s: The seconds between an actor's join and its stream, at most.
        reserved_names: Names with fixed slots: a name's slot is its index here, whatever the order of joining. Other
            actors get the next slots, in the order in which they join.
        note: Notes events of the actors.
        assignment: Names the slots of this learner, if the run has several, and receives the changes of its actors.
        in_step: True: actors play in step, so a process that replaces another continues its sequence numbers.
    """

    def __init__(
        self,
        *,
        max_actors: int,
        join_lease_s: float = DEFAULT_LIMITS.join_lease_s,
        reserved_names: Sequence[str] = (),
        note: NoteEvent = forget_event,
        assignment: ActorAssignment = ONE_LEARNER,
        in_step: bool = False,
    ) -> None:
        self._note = note
        self._in_step = in_step
        self._assignment = assignment
        self._max_actors = max_actors
        self._join_lease_s = join_lease_s
        self._reserved_slots = {name: self._slot(i) for i, name in enumerate(reserved_names)}
        self._told = TokenBuckets(_LINES_PER_S, _LINES_PER_S_EACH, burst_s=_LINES_BURST_S)
        self._lock = threading.Lock()  # guards the records, and all below
        self._records: dict[str, ActorRecord] = {}
        # The names of those in `_records` that have an open stream.
        self._streaming: set[str] = set()
        # the time of the last new name's first stream
        self._newcomer_at = -math.inf
        self._n_rollouts = 0
        self._n_dropped_episodes = 0
        # The actors in the resumed checkpoint that have not joined since.
        self._earlier: dict[str, EarlierActor] = {}
        self._tracebacks = Tracebacks()

    def join(self, offer: JoinOffer) -> ActorRecord:
        """Registers an actor, or recognises it.

        Raises:
            LimitExceededError: `max_actors` actors are alive already.
            ActorReplacedError: Another process has since joined under this name.
            RefusedError: Actors play in step, and it has played for an earlier learner.
            RankLostError: No other rank can be told that this one has the actor.
        """
        with self._lock:
            self._end_leases()
            actor_id = offer.actor_id or self._free_name()
            known = self._records.get(actor_id)
            if known is not None and known.process_nonce == offer.process_nonce:
                self._check_room(known)
                known.offer, known.last_seen = offer, time.monotonic()
                # Another learner may have acknowledged more, even since the actor joined: its answer was on its way.
                known.acknowledged_sequence = max(known.acknowledged_sequence, offer.acknowledged_sequence)
                if not known.is_alive:
                    self._set_state(known, ActorState.JOINED)
                return known
            earlier = self._earlier.get(actor_id)
            before = known or earlier
            came_back = earlier is not None and earlier.process_nonce == offer.process_nonce
            if before is not None and not came_back and _was_replaced(offer, before):
                raise ActorReplacedError(
                    f"another process has joined as {actor_id!r} since this process did: give each actor its own "
                    "--actor-id, or end one of the two"
                )
            if known is None and self._in_step and offer.incarnation:
                raise RefusedError(
                    f"actor {actor_id!r} has played for an earlier learner, and actors of this one play in step from "
                    "their first rollout on, because of --deterministic; expected a new process: start the actor again"
                )
            self._check_room(known)
            # A process that has played for another learner of this run continues its own counts.
            incarnation, acknowledged = max(offer.incarnation, 1), offer.acknowledged_sequence
            replaced_nonces = () if before is None else before.replaced_nonces
            if before is not None and not came_back:
                replaced_nonces = (*replaced_nonces, before.process_nonce)[-_MAX_REPLACED:]
                incarnation = next_incarnation(incarnation, before.incarnation)
            if came_back and earlier is not None:
                incarnation = earlier.incarnation
                # The actor no longer has the rollouts that the dead learner acknowledged after its checkpoint.
                acknowledged = max(acknowledged, earlier.taken_sequence)
            elif known is not None and self._in_step:
                # Rollout s is played for update s, whichever process plays it.
                acknowledged = known.acknowledged_sequence
            if before is None:
                self._forget_too_many()
            record = ActorRecord(
                actor_id=actor_id,
                slot=self._new_slot(actor_id) if before is None else before.slot,
                incarnation=incarnation,
                acknowledged_sequence=acknowledged,
                taken_sequence=acknowledged,
                process_nonce=offer.process_nonce,
                offer=offer,
                last_error="" if known is None else known.last_error,
                replaced_nonces=replaced_nonces,
                is_provisional=before is None and not offer.incarnation,
            )
            self._records[actor_id] = record
            self._streaming.discard(actor_id)
            self._earlier.pop(actor_id, None)
            replaced = None if known is None else known.cancel_stream
        self._assignment.took(actor_id)
        if replaced is not None:
            replaced()
        return record

    def open_stream(
        self, actor_id: str, incarnation: int, cancel: Callable[[], None], *, relay: Relay | None = None
    ) -> ActorRecord:
        """Marks an actor as streaming, and ends its old stream.

        Args:
            actor_id: The actor.
            incarnation: The number of its process.
            cancel: Ends the new stream.
            relay: The relay that carries the stream; None: the actor is connected directly.

        Raises:
            UnknownActorError: The actor has not joined, or joined through another relay.
            ActorReplacedError: Another process has since joined under its name.
            LimitExceededError: It was lost, and `max_actors` other actors are alive.
        """
        with self._lock:
            record = self._records.get(actor_id)
            if record is None or incarnation > record.incarnation:
                raise UnknownActorError(
                    f"actor {actor_id!r}, incarnation {incarnation}, has not joined this learner: call Join first"
                )
            if incarnation < record.incarnation:
                raise ActorReplacedError(
                    f"actor {actor_id!r}, incarnation {incarnation}, was replaced by incarnation {record.incarnation}: "
                    "give each actor its own --actor-id, or end this process"
                )
            if relay != (record.offer.via[-1] if record.offer.via else None):
                # The last join counts: a relay may only forward actors that joined through it.
                how = "itself" if relay is None else f"through relay {relay.relay_id!r}"
                raise UnknownActorError(
                    f"actor {actor_id!r}, incarnation {incarnation}, has not joined this learner {how} last: call Join "
                    "there first"
                )
            self._check_room(record)
            before, record.cancel_stream = record.cancel_stream, cancel
            self._set_state(record, ActorState.STREAMING)
            record.last_seen = time.monotonic()
            if record.is_provisional:
                record.is_provisional, self._newcomer_at = False, record.last_seen
            record.n_streams += 1
        self._note(EventSeverity.INFO, _arrival(record), who=actor_id)
        if before is not None:
            before()
        return record

    def is_current(self, record: ActorRecord, cancel: Callable[[], None]) -> bool:
        """Returns whether a stream is still the newest of its actor."""
        with self._lock:
            return record.cancel_stream is cancel

    def close_stream(self, record: ActorRecord, cancel: Callable[[], None], *, clean: bool) -> bool:
        """Marks an actor as gone, and drops its stream; returns False if a newer stream has replaced the stream."""
        with self._lock:
            if record.cancel_stream is not cancel:
                return False
            record.drop_stream()
            record.last_seen = time.monotonic()
            was_streaming = record.state is ActorState.STREAMING
            if was_streaming:
                self._set_state(record, ActorState.LEFT if clean else ActorState.LOST)
                if not clean:
                    record.lost_at = time.monotonic()
        if was_streaming and clean:
            self._note(EventSeverity.INFO, "left", who=record.actor_id)
        elif was_streaming:
            self._note(EventSeverity.WARNING, "lost its connection", who=record.actor_id)
        return True

    def accepted(self, record: ActorRecord, rollout: Rollout) -> None:
        """Counts a rollout that was accepted."""
        with self._lock:
            record.rollouts += 1
            self._n_rollouts += 1
            record.env_steps += rollout.n_env_steps
            record.rate.add(rollout.n_env_steps)
            record.policy_version = rollout.policy_version
            record.acknowledged_sequence = rollout.sequence
            record.last_seen = time.monotonic()

    def acted(self, record: ActorRecord, activity: ActorActivity) -> None:
        """Stores an actor's report of its time by state."""
        with self._lock:
            before = 0 if record.activity is None else record.activity.dropped_episodes
            self._n_dropped_episodes += max(0, activity.dropped_episodes - before)
            # An actor may report any numbers, and the status has 64 bits for them.
            self._n_dropped_episodes = min(self._n_dropped_episodes, _MAX_COUNT)
            record.cpu_cores = 0.0 if record.activity is None else cores_between(record.activity, activity)
            record.activity = activity

    @property
    def n_dropped_episodes(self) -> int:
        """The number of episodes that actors report as dropped."""
        return self._n_dropped_episodes

    def taken(self, rollout: Rollout) -> None:
        """Records that the trainer has taken a rollout. Call it in the order in which rollouts are taken."""
        with self._lock:
            record = self._records.get(rollout.actor_id)
            if record is not None and record.incarnation == rollout.incarnation:
                record.taken_sequence = rollout.sequence

    def state(self) -> dict[str, dict[str, Any]]:
        """Returns the values of every actor for a checkpoint, by name, in JSON's types."""
        with self._lock:
            actors = {**self._earlier, **self._records}
            return {
                name: {field: getattr(actor, field) for field in EarlierActor.__slots__}
                for name, actor in actors.items()
            }

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Loads the actors of an earlier `state`, to recognise them later. Call it before any actor joins."""
        self._earlier = {
            name: EarlierActor(**{**actor, "replaced_nonces": tuple(actor["replaced_nonces"])})
            for name, actor in state.items()
        }
        for name in self._earlier:
            self._assignment.took(name)

    def failed(self, record: ActorRecord, failure: ActorFailure) -> str | None:
        """Records why an actor failed.

        Returns:
            The text to log, with a traceback only if the traceback differs from the last one; None: log nothing,
            because the actor fails too often.
        """
        with self._lock:
            text = self._tracebacks.text_of(failure)
            self._set_state(record, ActorState.FAILED)
            record.last_error = f"{failure.exception_type}: {failure.message} (environment seed {failure.env_seed})"
        if self._told.take(record.actor_id) is not None:
            return None
        self._note(EventSeverity.ERROR, f"failed: {record.last_error}", who=record.actor_id, detail=failure.traceback)
        return text

    def rejected(self, record: ActorRecord, cancel: Callable[[], None], error: RollcastError) -> bool:
        """Records why an actor's message was refused. The refusal ends the actor's stream.

        The actor counts as refused unless the message was only lost or damaged in transit. After such damage, the actor
        soon reconnects.

        Returns:
            True: log the refusal. False: refusals are too frequent.
        """
        is_tried_again = isinstance(error, _TRIED_AGAIN)
        reason = shortened(str(error), MAX_REASON_LENGTH)
        with self._lock:
            record.last_error = reason
            if record.cancel_stream is cancel and not is_tried_again:
                self._set_state(record, ActorState.REFUSED)
        is_told = self._told.take(record.actor_id) is None
        if is_told:
            severity = EventSeverity.WARNING if is_tried_again else EventSeverity.ERROR
            self._note(severity, f"a message was refused: {reason}", who=record.actor_id)
        return is_told

    def lost(self, actor_id: str, reason: str, failure: ActorFailure | None = None) -> str | None:
        """Records that an actor's process has ended, even if its stream looks alive.

        Args:
            actor_id: The actor's name.
            reason: The reason, in one line.
            failure: The exception that ended it, if it has said so.

        Returns:
            What to log. None: nothing, because there is no traceback, or the actor's stream has brought it.
        """
        traceback = "" if failure is None else failure.traceback
        text: str | None = None
        reason = shortened(reason, MAX_REASON_LENGTH)
        with self._lock:
            record = self._records.get(actor_id)
            if failure is not None and traceback:
                is_known = record is not None and shortened(failure.message, MAX_REASON_LENGTH) in record.last_error
                text = None if is_known else self._tracebacks.text_of(failure)
            if record is not None and record.is_alive:
                self._set_state(record, ActorState.LOST)
                record.last_error = record.last_error or reason
        self._note(
            EventSeverity.WARNING, f"its process has ended: {reason}", who=actor_id, detail=traceback if text else ""
        )
        return text

    @property
    def n_rollouts(self) -> int:
        """The number of accepted rollouts of all actors. The cost does not depend on the number of actors."""
        return self._n_rollouts

    def slot_of(self, actor_id: str) -> int:
        """Returns the slot of an actor that has joined."""
        with self._lock:
            return self._records[actor_id].slot

    def infos(self) -> list[ActorInfo]:
        """Returns every actor that has ever joined, by slot."""
        with self._lock:
            self._end_absences()
            return sorted((record.info() for record in self._records.values()), key=lambda info: info.slot)

    def n_alive(self) -> int:
        """Returns the number of actors with an open stream. The cost does not depend on the number of actors."""
        with self._lock:
            return len(self._streaming)

    def missing(self, within_s: float) -> list[str]:
        """Returns the actors that lost their connection within the last `within_s` seconds and have not reconnected."""
        since = time.monotonic() - within_s
        with self._lock:
            return sorted(
                name
                for name, record in self._records.items()
                if record.state in _WITHOUT_STREAM and record.lost_at >= since
            )

    def told_end(self, actor_id: str) -> None:
        """Records that an actor reconnected and learnt that training has ended."""
        with self._lock:
            record = self._records.get(actor_id)
            if record is not None and record.state in _WITHOUT_STREAM:
                self._set_state(record, ActorState.LEFT)

    def _set_state(self, record: ActorRecord, state: ActorState) -> None:
        """Sets the state of an actor. The caller holds the lock."""
        record.state, record.state_since = state, time.monotonic()
        if state is ActorState.LOST:
            record.n_streaming_before = len(self._streaming)
        if self._records.get(record.actor_id) is not record:
            return  # another process has its name now
        if state is ActorState.STREAMING:
            self._streaming.add(record.actor_id)
        else:
            self._streaming.discard(record.actor_id)

    def _end_absences(self) -> None:
        """Marks actors that will not return as gone. The caller holds the lock."""
        now = time.monotonic()
        for record in self._records.values():
            if record.state not in _MAY_COME_BACK:
                continue
            away_s = now - record.state_since
            is_replaced = (
                record.state is ActorState.LOST
                and away_s > _COMES_BACK_S
                and record.state_since < self._newcomer_at
                and record.n_streaming_before <= len(self._streaming)
            )
            if is_replaced or away_s > _GONE_FOR_GOOD_S:
                self._set_state(record, ActorState.LEFT)

    def _check_room(self, record: ActorRecord | None) -> None:
        """Refuses a new or lost actor if `max_actors` are alive. The caller holds the lock."""
        if record is not None and record.is_alive:
            return
        alive = sum(each.is_alive for each in self._records.values())
        if alive >= self._max_actors:
            raise LimitExceededError(
                f"{alive} actors are alive and max_actors is {self._max_actors}: stop one, or raise --max-actors",
                limit="max_actors",
            )

    def _end_leases(self) -> None:
        """Ends the leases of actors that opened no stream in time. The caller holds the lock."""
        before = time.monotonic() - self._join_lease_s
        for name, record in list(self._records.items()):
            if record.state is not ActorState.JOINED or record.last_seen > before:
                continue
            if record.is_provisional:
                del self._records[name]
            else:
                self._set_state(record, ActorState.LOST)
                record.last_error = f"joined and opened no stream within {self._join_lease_s:g} s"

    def _forget_too_many(self) -> None:
        """Makes room for one more name. The caller holds the lock."""
        n_too_many = len(self._records) + len(self._earlier) + 1 - MAX_REMEMBERED_ACTORS
        if n_too_many <= 0:
            return
        # The actors of the checkpoint that have not returned have been away for longest.
        gone = [record for record in self._records.values() if not record.is_alive]
        gone.sort(key=lambda record: record.last_seen)
        for name in (*self._earlier, *(record.actor_id for record in gone))[:n_too_many]:
            self._earlier.pop(name, None)
            self._records.pop(name, None)

    def _new_slot(self, actor_id: str) -> int:
        """Returns the first free slot. The caller holds the lock."""
        reserved = self._reserved_slots
        if actor_id in reserved:
            return reserved[actor_id]
        taken = {actor.slot for actors in (self._records, self._earlier) for actor in actors.values()}
        slots = (self._slot(i) for i in itertools.count(len(reserved)))
        return next(slot for slot in slots if slot not in taken)

    def _slot(self, i: int) -> int:
        """Returns the i-th of this learner's slots: every W-th, so that no two ranks share one."""
        return self._assignment.rank + i * self._assignment.n_ranks

    def _free_name(self) -> str:
        # With more digits than one learner needs, because the learners of a run do not coordinate names.
        n_bytes = 3 if self._assignment.n_ranks == 1 else 6
        while (name := f"actor-{secrets.token_hex(n_bytes)}") in self._records.keys() | self._earlier.keys():
            pass
        return name

    def n_taken(self) -> int:
        """Returns the number of actors, including actors that have not opened a stream yet."""
        with self._lock:
            return sum(record.is_alive for record in self._records.values())


def _was_replaced(offer: JoinOffer, before: ActorRecord | EarlierActor) -> bool:
    """Returns whether the current process of a name, or an earlier one, has replaced this process.

    A learner without its earlier state does not know which processes it replaced; their incarnations show it.
    """
    return offer.process_nonce in before.replaced_nonces or 0 < offer.incarnation <= before.incarnation


def _arrival(record: ActorRecord) -> str:
    """Describes an actor that has opened a stream."""
    if record.n_streams > 1:
        return "came back"
    peer = record.offer.peer
    origin = f" from {shown_peer(peer)}" if peer and not peer.startswith("unix:") else ""
    again = f" again, as process {record.incarnation} of this name" if record.incarnation > 1 else ""
    through = f" through relay {record.offer.via[-1].relay_id}" if record.offer.via else ""
    return f"joined{again}{origin}{through}: slot {record.slot}, {record.offer.n_envs} environments"
