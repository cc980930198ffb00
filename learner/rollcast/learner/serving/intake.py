"""Admits actors, and opens their streams: the learner's implementation of `RolloutService`."""

import contextlib
import dataclasses
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.learner.serving.bundled import QueuedIntakeStream, ThreadedIntakeStream
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.stream import IntakeStream, SharedParts, WriteAheadLog
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import (
    NotReadyError,
    ProtocolMismatchError,
    RankLostError,
    RefusedError,
    RollcastError,
    TrainingEndedError,
)
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.joining.join import ActorRole, JoinAgreement, JoinOffer, Relay
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES
from rollcast.services.policies.evaluated import NO_EVALUATIONS
from rollcast.services.policies.policies import AUTO_NETWORK, BUILT_IN_NETWORKS, PolicySpec
from rollcast.services.rollouts.size import check_rollout_size
from rollcast.services.spaces.spaces import EnvironmentSpaces, check_spaces_match, leaf_order
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorState
from rollcast.services.streams.bundled_stream import Answer
from rollcast.services.version import software_version

logger = logging.getLogger(__name__)

# The time that a new stream waits for the actor's old one, which checks at least once a second for a replacement.
_TAKE_OVER_S = 10.0
# The number of redirected actors to remember. They may return at once if they cannot reach the address.
_N_SENT = 256


class RolloutIntake:
    """The learner's implementation of `RolloutService`: a `rollcast.services.streams.service.RolloutSink`.

    It promises room for at most `capacity` trajectories of a queue, including queued trajectories, and for at most one
    more rollout per actor; see `stream_state.StreamState`.

    Args:
        registry: The actors that have joined.
        destination: Takes accepted rollouts.
        seeds: The seeds of the actors.
        rollout_shape: The shape of the rollouts of an actor that takes the learner's number of environments.
        policy: The policy of all actors.
        rule: The rule for credits.
        durable: Keeps rollouts on the disk before they are acknowledged; None for no log.
        evaluations: The evaluators of the run; None: no evaluator may join.
        max_rollout_bytes: The size limit of rollouts. Join refuses an actor with larger rollouts.
        run_history: Records the actors' activity; None: no recording.
        assignment: Assigns actors to the learners of a run, or to ingest processes.
    """

    def __init__(
        self,
        registry: ActorRegistry,
        destination: RolloutDestination,
        *,
        seeds: ActorSeeds,
        rollout_shape: RolloutShape,
        policy: PolicySpec,
        rule: CreditRule | None = None,
        durable: WriteAheadLog | None = None,
        evaluations: Evaluations | None = None,
        max_rollout_bytes: int = DEFAULT_LIMITS.max_rollout_bytes,
        run_history: RunHistory | None = None,
        assignment: ActorAssignment = ONE_LEARNER,
    ) -> None:
        self._assignment = assignment
        self._parts = SharedParts(
            registry=registry,
            destination=destination,
            durable=durable,
            rule=rule or CreditRule(),
            rollout_shape=rollout_shape,
            run_history=run_history,
        )
        self._seeds = seeds
        self._policy = policy
        self._max_rollout_bytes = max_rollout_bytes
        # The redirected actors' processes, with the address; and whether one of them has returned.
        self._sent: deque[tuple[int, str]] = deque(maxlen=_N_SENT)
        self._one_came_back = False
        # Returning actors recognise the learner by this number; 0 would identify no learner.
        self._nonce = secrets.randbelow(2**64 - 1) + 1
        self._evaluations = evaluations
        if evaluations is not None:
            evaluations.begin(self._nonce)

    @property
    def learner_nonce(self) -> int:
        """The nonce of this learner's process, by which actors recognise it."""
        return self._nonce

    def admit(
        self, relay: Relay, waiting: Sequence[Relay], lose: Callable[[RollcastError], None]
    ) -> AbstractContextManager[int]:
        """Admits any relay; see `BundleSink`."""
        del relay, waiting, lose
        return contextlib.nullcontext(self._nonce)

    @property
    def duplicate_rollouts(self) -> int:
        """The number of rollouts that arrived again after a reconnect and were dropped."""
        return self._parts.counts.duplicates

    @property
    def rejected_rollouts(self) -> int:
        """The number of rollouts that were refused as invalid."""
        return self._parts.counts.rejected

    def end_training(self) -> None:
        """Tells every actor from now on that training has ended."""
        self._parts.ended.set()

    def leave_waiting(self) -> None:
        """Tells that this learner is about to close all streams, although training continues with the next learner."""
        self._parts.closing.set()

    def join(self, offer: JoinOffer) -> JoinAgreement:
        """Agrees with an actor, or an evaluator, on its work.

        Raises:
            TrainingEndedError: Training has ended.
            ProtocolMismatchError: The actor has another policy network. Or all actors play in step, and this actor has
                another number of environments or uses wall-clock time.
            SpacesMismatchError: Its spaces differ from the learner's.
            LimitExceededError: `max_actors` are alive already, or its rollouts would exceed `max_rollout_bytes`.
            RefusedError: An evaluator asks to join a run without evaluations.
            NotReadyError: The rank or ingest process that takes the actor does not serve yet. Or the ranks have lost
                each other: another rank may have the actor's last rollouts in its log, so this one does not take it.
        """
        try:
            return self._join(offer)
        except RankLostError as error:
            raise NotReadyError(f"{_actor(offer)} cannot join: {error}; try again with backoff") from error

    def _join(self, offer: JoinOffer) -> JoinAgreement:
        parts = self._parts
        if parts.ended.is_set():
            parts.registry.told_end(offer.actor_id)
            raise TrainingEndedError(
                "training has ended; expected a run that still trains; start a learner that trains, or begin another "
                "run"
            )
        self._check_network(offer)
        check_spaces_match(
            parts.rollout_shape.spaces, offer.spaces, expected_side="the learner", offered_side=_actor(offer)
        )
        has_own_order = leaf_order(offer.spaces) != leaf_order(parts.rollout_shape.spaces)
        # A rollout through a relay stays with its relay.
        if (
            offer.follows_redirect
            and not offer.via
            and (elsewhere := self._assignment.elsewhere(offer, parts.registry.n_taken()))
        ):
            logger.info("%s is sent to %s", _actor(offer), elsewhere)
            self._sent.append((offer.process_nonce, elsewhere))
            return self._redirect(offer, elsewhere)
        if self._sent and not (self._one_came_back or offer.follows_redirect or offer.via):
            self._note_return(offer)
        if offer.role is ActorRole.EVALUATE:
            return self._join_evaluator(offer, parts.rollout_shape.spaces if has_own_order else None)
        offer = dataclasses.replace(
            offer,
            n_envs=offer.n_envs or self._parts.rollout_shape.n_envs,
            # equal to the learner's, which are kept once for all actors
            spaces=parts.rollout_shape.spaces,
        )
        self._check_n_envs(offer)
        if parts.rule.in_step and offer.plays_by_clock:
            raise ProtocolMismatchError(
                f"{_actor(offer)} has --inference-address or --serve-environments, so the clock decides what it plays, "
                "and this learner has --deterministic; expected one of the two; leave the other out"
            )
        record = parts.registry.join(offer)
        env_seed, agent_seed = self._seeds.of(record.slot, record.incarnation)
        # An actor that has a stream joins again only to ask for its progress.
        level = logging.DEBUG if record.state is ActorState.STREAMING else logging.INFO
        logger.log(level, "actor %s joined: slot %d, incarnation %d", record.actor_id, record.slot, record.incarnation)
        return JoinAgreement(
            actor_id=record.actor_id,
            slot=record.slot,
            incarnation=record.incarnation,
            acknowledged_sequence=record.acknowledged_sequence,
            n_rollout_steps=parts.rollout_shape.n_rollout_steps,
            env_seed=env_seed,
            agent_seed=agent_seed,
            policy=self._policy,
            max_message_bytes=MAX_MESSAGE_BYTES,
            n_envs=offer.n_envs,
            learner_nonce=self._nonce,
            awaiting_s=record.awaiting_s(),
            # Behind a relay, an actor gets no policy here: the relay gets every version. The answer only names the
            # newest.
            policy_version=parts.rule.policy_version() if offer.via else parts.rule.sent_version(record.actor_id),
            activity_interval_s=parts.activity_interval_s(record),
            report_with_rollout=True,
            spaces=parts.rollout_shape.spaces if has_own_order else None,
        )

    def _note_return(self, offer: JoinOffer) -> None:
        """Warns once about a redirected actor that stays here."""
        address = dict(list(self._sent)).get(offer.process_nonce)
        if address is None:
            return
        self._one_came_back = True
        logger.warning(
            "%s was sent to %s, does not reach it, and stays here; no other such actor is logged; open that port; if "
            "actors know another name of this machine, give it as --advertised-host; with TLS, the certificate must "
            "contain the name",
            _actor(offer),
            address,
        )

    def _redirect(self, offer: JoinOffer, address: str) -> JoinAgreement:
        """Returns the answer that sends an actor to another learner or an ingest process, without an agreement."""
        return JoinAgreement(
            actor_id=offer.actor_id or "elsewhere",
            slot=0,
            incarnation=1,
            acknowledged_sequence=0,
            n_rollout_steps=self._parts.rollout_shape.n_rollout_steps,
            env_seed=0,
            agent_seed=0,
            policy=self._policy,
            max_message_bytes=MAX_MESSAGE_BYTES,
            n_envs=offer.n_envs or self._parts.rollout_shape.n_envs,
            evaluation=EvaluationPlan(n_episodes=1, seed=0) if offer.role is ActorRole.EVALUATE else None,
            learner_address=address,
        )

    def _join_evaluator(self, offer: JoinOffer, spaces: EnvironmentSpaces | None) -> JoinAgreement:
        """Agrees with an evaluator. `spaces` are the learner's if its own have another order."""
        if self._evaluations is None:
            raise RefusedError(NO_EVALUATIONS)
        name, incarnation = self._evaluations.join(offer)
        plan = self._evaluations.plan
        return JoinAgreement(
            actor_id=name,
            slot=0,
            incarnation=incarnation,
            acknowledged_sequence=0,
            n_rollout_steps=self._parts.rollout_shape.n_rollout_steps,
            env_seed=plan.seed,
            agent_seed=plan.seed,
            policy=self._policy,
            max_message_bytes=MAX_MESSAGE_BYTES,
            n_envs=offer.n_envs or 1,
            learner_nonce=self._nonce,
            policy_version=self._evaluations.given_version(name),
            spaces=spaces,
            evaluation=plan,
        )

    def describe(self, *, algorithm: str, batch_size: int) -> LearnerDescription:
        """Describes the algorithm, the spaces and the work. The server adds its limits.

        Args:
            algorithm: The algorithm's name; empty if unknown.
            batch_size: The size of a batch; 0 if this process does not train.
        """
        return LearnerDescription(
            spaces=self._parts.rollout_shape.spaces,
            policy=self._policy,
            n_rollout_steps=self._parts.rollout_shape.n_rollout_steps,
            batch_size=batch_size,
            n_envs=self._parts.rollout_shape.n_envs,
            algorithm=algorithm,
            software_version=software_version(),
        )

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> IntakeStream:
        """Opens the stream of a joined actor.

        Args:
            actor_id: The actor's name.
            incarnation: Its incarnation, from Join.
            peer: Its address, known since Join.
            cancel: Ends the stream; called when a newer stream replaces it.

        Raises:
            UnknownActorError: The actor has not joined.
            ActorReplacedError: Another process has joined under its name.
            NotReadyError: The actor's old stream has not ended in time.
        """
        del peer
        return self._open(actor_id, incarnation, cancel, None)

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
    ) -> QueuedIntakeStream | ThreadedIntakeStream:
        """Opens the stream of an actor that joined through a relay.

        Args:
            actor_id: The actor's name.
            incarnation: Its incarnation, from Join.
            relay: The relay that forwards its messages.
            peer: The relay's address, known since Join.
            answer: Sends the learner's answers to the actor.
            later: Runs a function on the relay's answering thread.
            cancel: Ends the stream; called when a newer stream replaces it.

        Raises:
            UnknownActorError: The actor has not joined, or not through this relay.
            ActorReplacedError: Another process has joined under its name.
            NotReadyError: The actor's old stream has not ended in time.
        """
        del peer
        stream = self._open(actor_id, incarnation, cancel, relay)
        queue = self._parts.queue
        if queue is None:
            return ThreadedIntakeStream(stream, answer)
        return QueuedIntakeStream(stream, answer, later, queue)

    def _open(self, actor_id: str, incarnation: int, cancel: Callable[[], None], relay: Relay | None) -> IntakeStream:
        registry = self._parts.registry
        record = registry.open_stream(actor_id, incarnation, cancel, relay=relay)
        if not record.accepting.acquire(timeout=_TAKE_OVER_S):
            registry.close_stream(record, cancel, clean=False)
            raise NotReadyError(
                f"actor {actor_id!r} has an earlier stream that still delivers a rollout, {_TAKE_OVER_S:.0f} s after "
                "another replaced it; expected it to end; join again with backoff"
            )
        try:
            if not registry.is_current(record, cancel):
                raise NotReadyError(
                    f"actor {actor_id!r} has opened another stream since; expected one at a time; continue with that "
                    "one"
                )
            return IntakeStream(self._parts, record, cancel)
        finally:
            record.accepting.release()

    def _check_network(self, offer: JoinOffer) -> None:
        own = self._policy.network
        fits = own in BUILT_IN_NETWORKS if offer.network == AUTO_NETWORK else own == offer.network
        if not fits:
            raise ProtocolMismatchError(
                f"{_actor(offer)} was started with --network {offer.network!r}, and the learner trains "
                f"{own!r}: start both with the same network"
            )

    def _check_n_envs(self, offer: JoinOffer) -> None:
        if self._parts.rule.in_step and offer.n_envs != self._parts.rollout_shape.n_envs:
            raise ProtocolMismatchError(
                f"{_actor(offer)} steps {offer.n_envs} environments, and this learner collects deterministically from "
                f"actors of {self._parts.rollout_shape.n_envs}; expected that number: start it without --envs-per-actor"
            )
        check_rollout_size(
            self._parts.rollout_shape.of_envs(offer.n_envs),
            max_rollout_bytes=self._max_rollout_bytes,
            advice="lower n_rollout_steps, or the environments of the actor (--envs-per-actor), or raise "
            "--limits.max-rollout-bytes of the learner",
        )


def _actor(offer: JoinOffer) -> str:
    return f"actor {offer.actor_id or '(unnamed)'!r}"
