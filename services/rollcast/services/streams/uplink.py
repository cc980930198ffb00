"""Sends rollouts to a learner: the actor's side of StreamRollouts."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import grpc

from rollcast.services.errors import LimitExceededError, NotReadyError, RollcastError
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.activity_codec import activity_to_proto
from rollcast.services.joining.failure_codec import failure_to_proto
from rollcast.services.limits.limits import MAX_CHUNK_BYTES, MAX_WAITING_ROLLOUTS
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress, progress_fields
from rollcast.services.wire.error_status import error_from_rpc, errors_of_calls, parse_response
from rollcast.services.wire.seal import damaged, seal
from rollcast.v1 import rollout_pb2

_METHOD: Final = "/rollcast.v1.RolloutService/StreamRollouts"
# Seconds after which gRPC's sending thread, waiting for credit, checks that its call is still open.
_LOOK_S: Final = 1.0


class RolloutUplink:
    """An open rollout stream. One thread sends, another reads `responses`. Any thread may `close` or `cancel`.

    Invariant: the uplink sends no rollout above the last credit. Credit arrives through iteration over `responses`, so
    a thread must iterate continuously.

    Args:
        channel: The channel to the learner.
        target: The learner's address, for messages.
        actor_id: From the agreement.
        incarnation: From the agreement.
        activity: Returns the actor's activity. gRPC's sending thread calls it. None: no reports.
        activity_interval_s: From the agreement: the time between two reports, in seconds; 0: no reports.
        report_with_rollout: From the agreement: whether a report waits for a rollout that will follow soon.
        on_policy: Receives the policy in an answer, before `responses` yields the answer, in the thread that iterates.
            A version may be older than a version from a subscription. None: no policies in answers.
        policy_version: The newest version that the actor has; 0: none.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        target: str,
        actor_id: str,
        incarnation: int,
        *,
        activity: Callable[[], ActorActivity] | None = None,
        activity_interval_s: float = 0.0,
        report_with_rollout: bool = False,
        on_policy: Callable[[int, PolicyState, float], None] | None = None,
        policy_version: int = 0,
    ) -> None:
        self._target = target
        self._on_policy = on_policy
        self._changed = threading.Condition()  # guards all below
        self._waiting: deque[Rollout | ActorFailure] = deque()
        self._activity = activity
        self._activity_interval_s = activity_interval_s
        self._report_with_rollout = report_with_rollout
        # The seconds that a due report waits for a rollout.
        self._report_wait_s = activity_interval_s / 2 if report_with_rollout else 0.0
        # when the next report is due, the first at once; only the sending thread uses it
        reports = activity is not None and activity_interval_s
        self._report_at = time.monotonic() - self._report_wait_s if reports else math.inf
        self._credit_sequence = 0
        self._closed = False
        self._cancelled = False
        self._reason: RollcastError | None = None
        opening = rollout_pb2.OpenStream(
            actor_id=actor_id,
            incarnation=incarnation,
            takes_policies=on_policy is not None,
            policy_version=policy_version,
        )
        # Without serialisers, because the requests are already serialised, and this class detects damage in responses.
        stream_rollouts = channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)
        with errors_of_calls(target):
            self._call: Any = stream_rollouts(self._requests(opening))
        self._call.add_callback(self._finish)

    def send(self, rollout: Rollout) -> None:
        """Queues a rollout and returns at once. The rollout is sent when the actor has credit for it.

        Args:
            rollout: The rollout. Its arrays must not change until the learner has acknowledged it.

        Raises:
            NotReadyError: The stream has ended. `responses` raises the reason.
            LimitExceededError: 256 rollouts already wait for credit.
        """
        with self._changed:
            if self._closed:
                raise NotReadyError(
                    f"rollout {rollout.sequence} was queued after the stream to {self._target} ended; expected an open "
                    "stream; read responses() for the reason, then reconnect"
                )
            if len(self._waiting) >= MAX_WAITING_ROLLOUTS:
                raise LimitExceededError(
                    f"{len(self._waiting)} rollouts wait for credit of {self._target}; expected fewer than "
                    f"{MAX_WAITING_ROLLOUTS}; send none above the last credit_sequence",
                    limit="max_waiting_rollouts",
                )
            self._waiting.append(rollout)
            self._changed.notify_all()

    def fail(self, failure: ActorFailure) -> None:
        """Reports the actor's failure, before any rollout without credit. Close the stream afterwards.

        Args:
            failure: The failure.
        """
        with self._changed:
            if not self._closed:
                self._waiting.appendleft(failure)
                self._changed.notify_all()

    def responses(self) -> Iterator[StreamProgress]:
        """Yields the learner's answers until the stream ends. Call it once.

        Yields:
            The progress of the stream.

        Raises:
            UnknownActorError: The learner does not know the actor: join again.
            ActorReplacedError: Another process has joined under the same name.
            LearnerUnreachableError: The connection broke: reconnect with backoff.
            NotReadyError: The learner is stopping, or a message was damaged: reconnect with backoff.
            UnreadableMessageError: The received bytes do not parse: reconnect a few times.
            InvalidInputError: The learner refused a rollout; sending it again will not help.
            DuplicateSequenceError: A sequence was sent twice on this stream.
            InvalidTensorError: The bytes of a policy are not a policy; another attempt will not help.
            LimitExceededError: A rollout or the number of streams exceeded a limit of the learner, or a received policy
                exceeds a limit of this process.
        """
        policies = PolicyAssembler(MAX_CHUNK_BYTES)
        try:
            sealed = False
            for serialized in self._call:
                response = parse_response(rollout_pb2.StreamRolloutsResponse, serialized)
                if sealed and not response.digest:
                    raise damaged("it has no digest, and the first of its stream had one")
                sealed = bool(response.digest)
                if self._on_policy is not None and response.HasField("policy"):
                    self._on_policy(*policies.add_whole(response.policy), policies.progress)
                with self._changed:
                    self._credit_sequence = max(self._credit_sequence, response.credit_sequence)
                    # An unnecessary wake-up of the sending thread would cost one thread switch for each rollout.
                    if self._waiting and self._may_go(self._waiting[0]):
                        self._changed.notify_all()
                yield StreamProgress(**progress_fields(response))
        except grpc.RpcError as error:
            if self._reason is not None:
                raise self._reason from error
            if not self._cancelled:
                raise error_from_rpc(error, self._target) from error
        finally:
            self._finish()

    def close(self) -> None:
        """Announces that no more rollouts follow.

        The uplink still sends the rollouts with credit. To wait for them, iterate over `responses` to the end.
        """
        self._finish()

    def cancel(self, reason: RollcastError | None = None) -> None:
        """Ends the stream at once.

        Args:
            reason: The error that `responses` raises; None: `responses` ends without an error.
        """
        with self._changed:
            self._cancelled, self._reason = True, reason
        self._finish()
        self._call.cancel()

    def _finish(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _requests(self, opening: rollout_pb2.OpenStream) -> Iterator[bytes]:
        """Yields the serialised messages. gRPC's sending thread iterates over them, and so encodes the rollouts."""
        encoder = RolloutEncoder()
        yield seal(rollout_pb2.StreamRolloutsRequest(open=opening).SerializeToString())
        while (item := self._next()) is not None:
            if isinstance(item, _Reported):
                yield from encoder.encode(item.rollout, item.report)
            elif isinstance(item, ActorActivity):
                yield seal(rollout_pb2.StreamRolloutsRequest(activity=activity_to_proto(item)).SerializeToString())
            else:
                yield seal(rollout_pb2.StreamRolloutsRequest(failure=failure_to_proto(item)).SerializeToString())
                return  # the learner ends the stream

    def _next(self) -> "_Reported | ActorFailure | ActorActivity | None":
        """Waits for the next message to send; None: the end."""
        item: Rollout | ActorFailure | None = None
        with self._changed:
            while True:
                late_s = time.monotonic() - self._report_at
                is_ready = bool(self._waiting) and self._may_go(self._waiting[0])
                # A rollout goes first, unless rollouts follow without a pause while reports have separate messages.
                if is_ready and (self._report_with_rollout or self._closed or late_s < self._activity_interval_s):
                    item = self._waiting.popleft()
                    break
                if self._closed:
                    return None
                if late_s >= self._report_wait_s:
                    break
                self._changed.wait(min(_LOOK_S, self._report_wait_s - late_s))
        if item is None:
            return self._report()
        if isinstance(item, ActorFailure):
            return item
        return _Reported(item, self._report() if self._report_with_rollout and late_s >= 0.0 else None)

    def _report(self) -> ActorActivity:
        assert self._activity is not None, "no report is ever due without it"
        # The interval begins now, so that after a wait for the network no two reports follow at once.
        self._report_at = time.monotonic() + self._activity_interval_s
        return self._activity()

    def _may_go(self, item: Rollout | ActorFailure) -> bool:
        return isinstance(item, ActorFailure) or item.sequence <= self._credit_sequence


class _Reported(NamedTuple):
    """A rollout, with the actor's activity if it is reported together."""

    rollout: Rollout
    report: ActorActivity | None
