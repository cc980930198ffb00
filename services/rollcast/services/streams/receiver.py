"""Receives the messages of one actor's rollout stream, from its own call or through a relay."""

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
    """A message of a rollout stream and its body; `request.body` must not be read."""

    request: rollout_pb2.StreamRolloutsRequest
    body: memoryview


def parse_request(serialized: bytes) -> RequestWithBody:
    """Parses a message of a rollout stream; leaves the bytes of its tensors in place.

    Args:
        serialized: The message.

    Returns:
        The message and its body.

    Raises:
        google.protobuf.message.DecodeError: The bytes do not parse as such a message.
        DamagedMessageError: The bytes are not those that the writer sealed.
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
    """Parses a message of a rollout stream, like `parse_request`, with errors of the tree only.

    Raises:
        UnreadableMessageError: The bytes do not parse as such a message.
        DamagedMessageError: The bytes are not those that the writer sealed.
    """
    try:
        return parse_request(serialized)
    except DecodeError as error:
        raise UnreadableMessageError(
            f"a rollout stream got {len(serialized)} bytes that do not parse ({error}); expected a "
            "StreamRolloutsRequest; send the message of rollcast/v1/rollout.proto; send it again if it was damaged on "
            "its way"
        ) from error


class RolloutStream(Protocol):
    """One actor's open stream as the learner sees it. Called from the one thread that serves the stream."""

    @property
    def joined(self) -> JoinedActor:
        """The actor, as agreed at Join."""

    def received(self, serialized: bytes) -> None:
        """Sees a message as its actor has sent it, before it is handled.

        Args:
            serialized: The message: part of a rollout, a report of the actor's time, or a failure.
        """

    def progress(self) -> StreamProgress:
        """Returns the stream's progress, which is sent as soon as it opens."""

    def take_policy(self, *, holds_version: int | None = None) -> EncodedPolicy | None:
        """Returns the policy to send with the progress that was returned last, of at most `MAX_CREDITED_POLICY_BYTES`.

        Called only for actors that take policies there.

        Args:
            holds_version: The version that the actor has, when its stream is opened; None: the one it was sent last.

        Returns:
            The newest version; None if the actor has it, or gets it by its subscription.
        """

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Takes a rollout; waits while the queue is full, which slows the actor down.

        Args:
            rollout: A rollout checked against the agreement. The stream must not use its arrays afterwards.
            is_active: Returns whether the caller is still there; to be called at least every second while waiting.

        Returns:
            The stream's progress now; if it gives no credit beyond the rollout, and training continues, `await_credit`
            must follow.

        Raises:
            DuplicateSequenceError: The sequence came on this stream before.
            MissingMessageError: Its sequence leaves a gap.
            LimitExceededError: Its sequence is above the credit.
            ActorReplacedError: Another process has joined under the same name.
        """

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Waits for the actor's next credit, or the end of training. The learner has the earlier rollouts by then.

        Args:
            is_active: See `accept`.

        Returns:
            The stream's progress then.
        """

    def awaits_message(self, awaits: bool) -> None:
        """Notes whether the stream now waits for the actor's next message.

        Args:
            awaits: Whether it waits.
        """

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        """Takes a report of the actor's time. It is no progress, and needs no credit.

        Args:
            activity: The report.
            is_alone: Whether its message has nothing else; False: it came with a rollout.
        """

    def fail(self, failure: ActorFailure) -> None:
        """Notes that the actor has failed.

        Args:
            failure: The actor's report.
        """

    def rejected(self, error: RollcastError) -> None:
        """Notes that a message was refused, which ends the stream.

        Args:
            error: The reason.
        """

    def close(self, *, clean: bool) -> None:
        """Notes that the stream has ended; called exactly once.

        Args:
            clean: The actor said that it was done, or was told that training has ended.
        """


class RolloutReceiver:
    """Checks the messages of one actor's stream, assembles its rollouts, and passes on reports. Used by one thread.

    After an error it cannot be used again: the stream must end.

    Attributes:
        has_failed: True once the actor has reported its failure: the stream must end.

    Args:
        stream: The actor's stream as the learner sees it.
        max_rollout_bytes: The largest rollout to accept.
        hold: Called before the bytes of a message are kept; may wait until there is room, or raise.
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
        """Takes the next message of the stream, which was waiting for it.

        Args:
            serialized: The message.

        Returns:
            The rollout, if this message completes it; the stream then waits for no message until `await_message`.

        Raises:
            DamagedMessageError: The message is not the one that was sealed.
            UnreadableMessageError: It does not parse.
            InvalidInputError: It does not fit the agreement, or the message before it is missing.
            LimitExceededError: It is above a limit.
            NotReadyError: The stream ended while it waited for room.
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
        """Notes that the stream waits for the next message again, after a rollout was dealt with."""
        self._stream.awaits_message(True)

    def _receive(self, serialized: bytes) -> Rollout | None:
        request, body = parse_message(serialized)
        if self._sealed and not request.digest:
            raise damaged("it has no digest, and the first of its stream had one")
        self._stream.received(serialized)
        if request.HasField("activity"):
            # The stream still waits for its actor's next message: a report says nothing of a rollout that was lost.
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
