"""Receives the messages of one actor's rollout stream, from the actor's own call or through a relay."""

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from rollcast.services.errors import DamagedMessageError, RollcastError, UnreadableMessageError
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.activity_codec import activity_from_proto
from rollcast.services.joining.failure_codec import failure_from_proto
from rollcast.services.joining.join import JoinedActor
from rollcast.services.limits.activity_rate import ActivityRate
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.rollouts.assembler import Hold, RolloutAssembler
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.wire.message_body import split_body
from rollcast.services.wire.seal import damaged, find_seal, matches_seal
from rollcast.v1 import rollout_pb2

_log = logging.getLogger(__name__)


class RequestWithBody(NamedTuple):
    """A message of a rollout stream and its body. Do not read `request.body`."""

    request: rollout_pb2.StreamRolloutsRequest
    body: memoryview


def parse_request(serialized: bytes) -> RequestWithBody:
    """Parses a message of a rollout stream, without copying the bytes of its tensors.

    Args:
        serialized: The message.

    Returns:
        The message and its body.

    Raises:
        google.protobuf.message.DecodeError: The bytes do not parse as this message.
        DamagedMessageError: The bytes do not match their digest.
    """
    head, body = split_body(serialized)
    n_sealed = find_seal(head)
    if n_sealed is not None and not matches_seal(head, body, n_sealed):
        raise damaged(f"the digest of its {len(serialized)} bytes does not match")
    request = rollout_pb2.StreamRolloutsRequest.FromString(head)
    if n_sealed is None and request.digest:
        raise damaged(f"the digest of its {len(serialized)} bytes is not right before the body")
    return RequestWithBody(request, body or memoryview(request.body))


def parse_message(serialized: bytes) -> RequestWithBody:
    """Parses a message like `parse_request`, but raises only errors of `rollcast.services.errors`.

    Raises:
        UnreadableMessageError: The bytes do not parse as this message.
        DamagedMessageError: The bytes do not match their digest.
    """
    try:
        return parse_request(serialized)
    except DecodeError as error:
        raise UnreadableMessageError(
            f"a rollout stream got {len(serialized)} bytes that do not parse ({error}); expected a "
            "StreamRolloutsRequest; send the message of rollcast/v1/rollout.proto; send it again if it was damaged in "
            "transit"
        ) from error


class RolloutStream(Protocol):
    """The learner's view of one actor's open stream. Only the thread that serves the stream calls it."""

    @property
    def joined(self) -> JoinedActor:
        """The actor, with the agreement at Join."""

    def received(self, serialized: bytes) -> None:
        """Takes an unchanged message of the actor, before the server handles it.

        Args:
            serialized: The message: part of a rollout, an activity report, or a failure.
        """

    def progress(self) -> StreamProgress:
        """Returns the stream's progress. The server sends it as soon as the stream opens."""

    def take_policy(self, *, holds_version: int | None = None) -> EncodedPolicy | None:
        """Returns the policy to send with the last returned progress, of at most `MAX_CREDITED_POLICY_BYTES`.

        Called only for actors that accept policies in answers.

        Args:
            holds_version: The actor's version at the opening of its stream; None: the last version sent to the actor.

        Returns:
            The newest version; None if the actor has this version, or gets it through its subscription.
        """

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Takes a rollout. Waits while the queue is full, which slows the actor down.

        Args:
            rollout: A rollout checked against the agreement. The stream must not use its arrays afterwards.
            is_active: Returns whether the actor is still connected. Call this at least every second while waiting.

        Returns:
            The stream's current progress. If it has no credit beyond the rollout, and training continues, call
            `await_credit` next.

        Raises:
            DuplicateSequenceError: The sequence is a repetition on this stream.
            MissingMessageError: The rollout's sequence leaves a gap.
            LimitExceededError: The rollout's sequence exceeds the credit.
            ActorReplacedError: Another process has joined under the same name.
        """

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Waits for the actor's next credit, or the end of training. The learner then has the earlier rollouts.

        Args:
            is_active: See `accept`.

        Returns:
            The stream's progress after the wait.
        """

    def awaits_message(self, awaits: bool) -> None:
        """Notes whether the stream now waits for the actor's next message.

        Args:
            awaits: Whether the stream waits.
        """

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        """Takes an activity report. A report does not count as progress, and needs no credit.

        Args:
            activity: The report.
            is_alone: Whether the report has a separate message; False: it arrived with a rollout.
        """

    def fail(self, failure: ActorFailure) -> None:
        """Notes that the actor has failed.

        Args:
            failure: The actor's report.
        """

    def rejected(self, error: RollcastError) -> None:
        """Notes that the server refused a message, which ends the stream.

        Args:
            error: The reason.
        """

    def close(self, *, clean: bool) -> None:
        """Notes that the stream has ended; called exactly once.

        Args:
            clean: Whether the actor closed the stream itself, without an error, or knows that training has ended.
        """


class RolloutReceiver:
    """Checks the messages of one actor's stream, assembles rollouts, and delivers reports. For one thread.

    After an error, it cannot be used again, and the stream must end.

    Attributes:
        has_failed: True if the actor has reported its failure, so the stream must end.

    Args:
        stream: The learner's side of the actor's stream.
        max_rollout_bytes: The largest rollout to accept.
        hold: Called before the receiver stores the bytes of a message. It may wait until they fit, or raise.
        sealed: Whether every message must have a digest.
    """

    def __init__(self, stream: RolloutStream, *, max_rollout_bytes: int, hold: Hold, sealed: bool) -> None:
        self._stream = stream
        self._sealed = sealed
        self.has_failed = False
        joined = stream.joined
        self._actor_id = joined.actor_id
        self._rate = ActivityRate(joined.activity_interval_s, actor_id=joined.actor_id)
        self._assembler = RolloutAssembler(
            joined.rollout_shape,
            max_rollout_bytes,
            actor_id=joined.actor_id,
            incarnation=joined.incarnation,
            hold=hold,
        )

    def receive(self, serialized: bytes) -> Rollout | None:
        """Takes the next message of the stream, which must be waiting for a message.

        Args:
            serialized: The message.

        Returns:
            The rollout, if this message completes it. The stream then waits for the next message only after
            `await_message`.

        Raises:
            DamagedMessageError: The message does not match its digest.
            UnreadableMessageError: The message does not parse.
            InvalidInputError: The message does not fit the agreement, or the previous message is missing.
            LimitExceededError: The message exceeds a limit.
            NotReadyError: The stream ended while it waited for memory.
        """
        try:
            return self._receive(serialized)
        except DamagedMessageError as error:  # not `rejected`: the actor did nothing wrong
            _log.warning("actor %r must send a message again: %s", self._actor_id, error)
            raise
        except RollcastError as error:
            self._stream.rejected(error)
            raise

    def await_message(self) -> None:
        """Notes that the stream has handled a rollout, and waits for the next message again."""
        self._stream.awaits_message(True)

    def _receive(self, serialized: bytes) -> Rollout | None:
        request, body = parse_message(serialized)
        if self._sealed and not request.digest:
            raise damaged("it has no digest, and the first of its stream had one")
        self._stream.received(serialized)
        if request.HasField("activity"):
            # The stream still waits for the actor's next message, because a report does not replace a lost rollout.
            self._take_report(request.activity, is_alone=True)
            return None
        self._stream.awaits_message(False)
        rollout = None
        if request.HasField("failure"):
            self.has_failed = True
            self._stream.fail(failure_from_proto(request.failure))
        else:
            if request.HasField("report"):
                self._take_report(request.report, is_alone=False)
            rollout = self._assembler.add(request, body)
        if rollout is None:
            self._stream.awaits_message(True)
        return rollout

    def _take_report(self, proto: rollout_pb2.ActorActivity, *, is_alone: bool) -> None:
        if self._rate.count():
            activity = activity_from_proto(proto, actor_id=self._actor_id)
            if activity is not None:
                self._stream.acted(activity, is_alone=is_alone)
