"""Where rollouts come in: joins are agreed, duplicates dropped, credits given, the rest passed on."""

import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rollcast.learner.ingest.records import ActorRecord
from rollcast.learner.ingest.registry import ActorRegistry
from rollcast.services.errors import (
    DuplicateSequenceError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    ProtocolMismatchError,
    RollcastError,
    TrainingEndedError,
)
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.rollouts import ActorFailure, Rollout, StreamProgress
from rollcast.services.rollouts.size import check_rollout_size
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match, leaf_order
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorState
from rollcast.services.version import software_version

logger = logging.getLogger(__name__)

# How long a new stream of an actor waits for the last, which looks every second at least whether it is still wanted.
_TAKE_OVER_S = 10.0


class RolloutDestination(Protocol):
    """Where accepted rollouts go: a `RolloutQueue`, or straight into a replay buffer. Called from many threads."""

    def put(self, rollout: Rollout, *, is_active: Callable[[], bool], n_reserved: int = 0) -> bool:
        """Takes a rollout, waiting while there is no room: the back-pressure that reaches the actors.

        Args:
            rollout: What to take.
            is_active: Looked at every second at least while waiting; False gives up.
            n_reserved: How many trajectories were set aside for it by `reserve`, at least its own; 0: none.

        Returns:
            False if it was not taken: this was closed, or `is_active` became False meanwhile.
        """

    def reserve(self, n_trajectories: int) -> bool:
        """Sets room for a coming rollout aside, if there is any; never waits."""

    def release(self, n_trajectories: int) -> None:
        """Gives a reservation back."""

    def close(self) -> None:
        """Refuses every further rollout, and ends the wait of those that wait."""


class RolloutLog(Protocol):
    """A log on the disk, of rollouts that are acknowledged."""

    def write(
        self, rollout: Rollout, record: ActorRecord, encoder: RolloutEncoder, *, is_active: Callable[[], bool]
    ) -> bool:
        """Writes a rollout, and waits until it is on the disk.

        Args:
            rollout: The rollout.
            record: Its actor.
            encoder: Of its stream.
            is_active: Looked at now and then while waiting; False gives up.

        Returns:
            False if `is_active` became False, or the log was closed: the rollout is not to be acknowledged.

        Raises:
            NotReadyError: The disk is full, or has failed.
        """

    def discard(self, rollout: Rollout) -> None:
        """Takes back a rollout that was written, and is not acknowledged after all."""


class RolloutIntake:
    """The learner's side of `RolloutService`: a `rollcast.services.rollouts.service.RolloutSink`.

    Credits: every actor may always have one rollout under way, the `n_actors / batch_size` of the seeds' staleness
    bound. Where the destination has room that nobody was promised, it may have a second one, so that it goes on
    stepping while the first is on its way; that room is reserved. So at most a queue's `capacity` trajectories are
    promised room, those that are queued included, and at most one rollout per actor beyond that.

    Args:
        registry: Who has joined.
        destination: Where accepted rollouts go.
        spaces: What every actor's environments must look like.
        policy: What every actor shall build.
        n_rollout_steps: T.
        envs_per_actor: What an actor steps that leaves it to the learner.
        policy_version: The newest that was cast.
        bounded_staleness: Whether a rollout that is started on a credit given now must have at least that version.
        in_step: Every actor has one credit at a time, and starts rollout s with policy version s: nobody plays ahead.
        durable: Where rollouts are written before they are acknowledged; None: nowhere.
        max_rollout_bytes: The largest rollout that is taken: actors whose rollouts would be larger are refused at Join.
    """

    def __init__(
        self,
        registry: ActorRegistry,
        destination: RolloutDestination,
        *,
        spaces: EnvironmentSpaces,
        policy: PolicySpec,
        n_rollout_steps: int,
        envs_per_actor: int,
        policy_version: Callable[[], int] = lambda: 0,
        bounded_staleness: bool = False,
        in_step: bool = False,
        durable: RolloutLog | None = None,
        max_rollout_bytes: int = DEFAULT_LIMITS.max_rollout_bytes,
    ) -> None:
        self._registry = registry
        self._destination = destination
        self._spaces = spaces
        self._policy = policy
        self._n_rollout_steps = n_rollout_steps
        self._envs_per_actor = envs_per_actor
        self._policy_version = policy_version
        self._bounded_staleness = bounded_staleness
        self._in_step = in_step
        self._durable = durable
        self._max_rollout_bytes = max_rollout_bytes
        # Tells actors that come back whether it is this learner they come back to; 0 would say nothing.
        self._nonce = secrets.randbelow(2**64 - 1) + 1
        self._ended = threading.Event()
        self._lock = threading.Lock()  # guards the counters
        self._duplicates = 0
        self._rejected = 0

    @property
    def duplicate_rollouts(self) -> int:
        """Rollouts received again after a reconnect, and dropped."""
        return self._duplicates

    @property
    def rejected_rollouts(self) -> int:
        """Rollouts refused because they did not fit."""
        return self._rejected

    def end_training(self) -> None:
        """From now on every actor is told that training has ended."""
        self._ended.set()

    def join(self, offer: JoinOffer) -> JoinAgreement:
        """Agrees with an actor on what it shall do.

        Raises:
            TrainingEndedError: Training has ended.
            ProtocolMismatchError: It was started with another policy network, or another number of environments where
                all play in step.
            SpacesMismatchError: Its spaces are not the learner's.
            LimitExceededError: There are `max_actors` already, or its rollouts would be above `max_rollout_bytes`.
        """
        if self._ended.is_set():
            raise TrainingEndedError(
                "training has ended; expected a run that goes on; start a learner that trains, or begin another run"
            )
        name = offer.actor_id or "(unnamed)"
        if offer.network != self._policy.network:
            raise ProtocolMismatchError(
                f"actor {name!r} was started with --network {offer.network!r}, the learner trains "
                f"{self._policy.network!r}: start both with the same"
            )
        check_spaces_match(self._spaces, offer.spaces, expected_side="the learner", offered_side=f"actor {name!r}")
        has_own_order = leaf_order(offer.spaces) != leaf_order(self._spaces)
        if not offer.n_envs:
            offer = dataclasses.replace(offer, n_envs=self._envs_per_actor)
        if self._in_step and offer.n_envs != self._envs_per_actor:
            raise ProtocolMismatchError(
                f"actor {name!r} steps {offer.n_envs} environments, and this learner collects deterministically from "
                f"actors of {self._envs_per_actor}; expected as many: start it without --envs-per-actor"
            )
        check_rollout_size(
            self._spaces,
            self._n_rollout_steps,
            offer.n_envs,
            max_rollout_bytes=self._max_rollout_bytes,
            advice="lower n_rollout_steps, or the environments of the actor (--envs-per-actor), or raise "
            "--limits.max-rollout-bytes of the learner",
        )
        # equal to the learner's, which are kept once
        record = self._registry.join(dataclasses.replace(offer, spaces=self._spaces))
        env_seed, agent_seed = self._registry.seeds(record)
        # one that has a stream only asks how far it is
        level = logging.DEBUG if record.state is ActorState.STREAMING else logging.INFO
        logger.log(level, "actor %s joined: slot %d, incarnation %d", record.actor_id, record.slot, record.incarnation)
        return JoinAgreement(
            actor_id=record.actor_id,
            slot=record.slot,
            incarnation=record.incarnation,
            acknowledged_sequence=record.acknowledged_sequence,
            n_rollout_steps=self._n_rollout_steps,
            env_seed=env_seed,
            agent_seed=agent_seed,
            policy=self._policy,
            max_message_bytes=MAX_MESSAGE_BYTES,
            n_envs=offer.n_envs,
            learner_nonce=self._nonce,
            awaiting_s=record.awaiting_s(),
            policy_version=self._policy_version(),
            spaces=self._spaces if has_own_order else None,
        )

    def describe(self, *, algorithm: str, batch_size: int) -> LearnerDescription:
        """Tells what is learnt, and from what; the limits are the server's to add.

        Args:
            algorithm: The algorithm's name; empty: nobody knows.
            batch_size: How much a batch holds; 0: nobody learns here.
        """
        return LearnerDescription(
            spaces=self._spaces,
            policy=self._policy,
            n_rollout_steps=self._n_rollout_steps,
            batch_size=batch_size,
            n_envs=self._envs_per_actor,
            algorithm=algorithm,
            software_version=software_version(),
        )

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> "IntakeStream":
        """Opens the stream of an actor that has joined.

        Raises:
            UnknownActorError: It has not.
            ActorReplacedError: Another process has, under its name.
            NotReadyError: The stream that it had does not end.
        """
        del peer  # the join has told it
        record = self._registry.open_stream(actor_id, incarnation, cancel)
        if not record.accepting.acquire(timeout=_TAKE_OVER_S):
            self._registry.close_stream(record, cancel, clean=False)
            raise NotReadyError(
                f"actor {actor_id!r} has a stream that still passes a rollout on, {_TAKE_OVER_S:.0f} s after another "
                "took over; expected it to give up; join again with backoff"
            )
        try:
            return IntakeStream(self, record, cancel)
        finally:
            record.accepting.release()

    def _count_duplicate(self) -> None:
        with self._lock:
            self._duplicates += 1

    def _note_rejected(self, record: ActorRecord, cancel: Callable[[], None], error: RollcastError) -> None:
        logger.warning("refused a rollout: %s", error)
        self._registry.rejected(record, cancel, error)
        with self._lock:
            self._rejected += 1

    def _note_failure(self, record: ActorRecord, failure: ActorFailure) -> None:
        logger.error("actor %s failed:\n%s", record.actor_id, failure.traceback)
        self._registry.failed(record, failure)


class IntakeStream:
    """One open stream: a `rollcast.services.rollouts.service.RolloutStream`. Used by the stream's own thread only.

    Invariant: of an actor's streams only the newest passes rollouts on. What the one before was passing on when it was
    replaced has either arrived, and is acknowledged by the new one from the start, or never does.

    Args:
        intake: Whose stream this is.
        record: Whose rollouts these are.
        cancel: Identifies the stream in the registry.
    """

    def __init__(self, intake: RolloutIntake, record: ActorRecord, cancel: Callable[[], None]) -> None:
        self._intake = intake
        self._destination = intake._destination
        self._durable = intake._durable
        self._encoder = RolloutEncoder()  # for what is written to the log
        self._record = record
        self._cancel = cancel
        self.actor_id = record.actor_id
        self.incarnation = record.incarnation
        self.spaces = intake._spaces
        self.n_rollout_steps = intake._n_rollout_steps
        self.n_envs = record.offer.n_envs
        # Which substep comes next is the actor's affair: room is reserved for the largest.
        self._n_trajectories = self.n_envs * max(substep.n_agents for substep in self.spaces.values())
        self._acknowledged = record.acknowledged_sequence
        self._last_on_stream = 0
        # an actor has one credit always, and at most one more that is backed by a reservation
        self._has_reservation = False
        self._credit = self._acknowledged + 1
        self._extend_credit()
        self._awaiting_since: float | None = None
        record.awaiting_s = self._awaiting_s

    def progress(self) -> StreamProgress:
        """What the actor is to know."""
        return StreamProgress(
            acknowledged_sequence=self._acknowledged,
            credit_sequence=self._credit,
            end_of_training=self._intake._ended.is_set(),
            min_policy_version=self._min_policy_version(),
        )

    def awaits_message(self, awaits: bool) -> None:
        """Notes whether nothing is left to do but to wait for what the actor sends next."""
        self._awaiting_since = time.monotonic() if awaits else None

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Passes a rollout on, waiting while there is no room; drops it if it was accepted before.

        Raises:
            DuplicateSequenceError: It was sent on this very stream before.
            MissingMessageError: Rollouts before it have not come.
            LimitExceededError: It was not credited.
            NotReadyError: The learner is stopping, or the disk takes no more of its log.
        """
        sequence = rollout.sequence
        if sequence <= self._last_on_stream:
            raise DuplicateSequenceError(
                f"actor {self.actor_id!r} sent rollout {sequence} after {self._last_on_stream} on one stream; each is "
                "sent once a stream, in order"
            )
        if sequence <= self._acknowledged:
            self._last_on_stream = sequence
            self._intake._count_duplicate()
            return self.progress()
        if sequence > self._credit:
            raise LimitExceededError(
                f"actor {self.actor_id!r} sent rollout {sequence} but was credited up to {self._credit}: "
                "wait for credit"
            )
        if sequence != self._acknowledged + 1:
            raise MissingMessageError(
                f"actor {self.actor_id!r} sent rollout {sequence} after {self._acknowledged}: those between are "
                "missing; join again and send every rollout that is not acknowledged, in order"
            )
        if self._intake._ended.is_set():
            return self.progress()
        if not self._pass_on(rollout, is_active):
            if self._intake._ended.is_set():
                return self.progress()
            raise NotReadyError(
                f"rollout {sequence} of actor {self.actor_id!r} was not taken: the learner is stopping, or the stream "
                "broke while it waited for room; join again with backoff and send it again"
            )
        self._last_on_stream = self._acknowledged = sequence
        self._credit = max(self._credit, sequence + 1)
        self._extend_credit()
        return self.progress()

    def fail(self, failure: ActorFailure) -> None:
        """Notes that the actor has failed."""
        self._intake._note_failure(self._record, failure)

    def rejected(self, error: RollcastError) -> None:
        """Counts and logs a rollout that did not fit."""
        self._intake._note_rejected(self._record, self._cancel, error)

    def close(self, *, clean: bool) -> None:
        """Gives back what was reserved."""
        if self._has_reservation:
            self._destination.release(self._n_trajectories)
            self._has_reservation = False
        self._intake._registry.close_stream(self._record, self._cancel, clean=clean)
        logger.info("actor %s %s", self.actor_id, "left" if clean else "was lost")

    def _awaiting_s(self) -> float:
        since = self._awaiting_since
        return 0.0 if since is None else time.monotonic() - since

    def _min_policy_version(self) -> int:
        """What a rollout that is started on a credit given now must have at least; 0: any."""
        if self._intake._in_step:
            return self._credit
        return self._intake._policy_version() if self._intake._bounded_staleness else 0

    def _pass_on(self, rollout: Rollout, is_active: Callable[[], bool]) -> bool:
        registry = self._intake._registry
        with self._record.accepting:
            if not registry.is_current(self._record, self._cancel):
                return False
            durable = self._durable
            if durable is not None and not durable.write(rollout, self._record, self._encoder, is_active=is_active):
                return False
            n_reserved = self._n_trajectories if self._has_reservation else 0
            self._has_reservation = False
            if not self._destination.put(rollout, is_active=is_active, n_reserved=n_reserved):
                if durable is not None:
                    durable.discard(rollout)
                return False
            registry.accepted(self._record, rollout)
            return True

    def _extend_credit(self) -> None:
        if self._intake._in_step or self._has_reservation or self._credit != self._acknowledged + 1:
            return
        if self._destination.reserve(self._n_trajectories):
            self._has_reservation = True
            self._credit += 1
