"""Serves RolloutService: actors join and stream their rollouts. Defines the interfaces of the learner."""

import functools
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol

import grpc

from rollcast.services.address import shown_peer
from rollcast.services.errors import InvalidRolloutError, RefusedError
from rollcast.services.joining.evaluation import EvaluationReport
from rollcast.services.joining.evaluation_codec import evaluation_report_from_proto
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.joining.join_codec import join_agreement_to_proto, join_offer_from_proto
from rollcast.services.limits.bytes_in_flight import BytesInFlight, StreamBytes
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH
from rollcast.services.limits.texts import shortened
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.evaluated import NO_EVALUATIONS
from rollcast.services.rollouts.rollouts import StreamProgress, progress_fields
from rollcast.services.streams.receiver import RolloutReceiver, RolloutStream, parse_message
from rollcast.services.wire.message_body import open_field
from rollcast.services.wire.seal import parse_sealed, seal, seal_joined
from rollcast.v1 import rollout_pb2

# gRPC reports the end of the requests a moment before it reports a cancelled call or a lost connection. After the
# actor's half-close, the call stays open, so a short wait distinguishes the two cases. Both reports come from one
# thread of gRPC. On a busy machine that thread needs several turns, so this thread waits several times.
_CANCELLATION_S: Final = 0.01
_CANCELLATION_TURNS: Final = 10

_SERVICE: Final = "rollcast.v1.RolloutService"
_POLICY: Final = rollout_pb2.StreamRolloutsResponse.POLICY_FIELD_NUMBER


class RolloutSink(Protocol):
    """The part of a learner that RolloutServicer needs. Many threads call it."""

    def join(self, offer: JoinOffer) -> JoinAgreement:
        """Agrees with an actor.

        Args:
            offer: The checked offer.

        Raises:
            SpacesMismatchError: The actor's spaces differ from the learner's.
            ProtocolMismatchError: The actor's policy network differs from the learner's.
            LimitExceededError: The learner has its largest number of actors.
            NotReadyError: The learner is starting or stopping.
            TrainingEndedError: Training has ended.
        """

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> RolloutStream:
        """Opens an actor's stream.

        Args:
            actor_id: The actor.
            incarnation: The incarnation of the actor's process.
            peer: The caller's address, in gRPC's format.
            cancel: Ends the stream from any thread, for a replaced stream whose actor is silent. The actor gets an
                error and reconnects. For an active stream, raise an error from `accept` instead.

        Raises:
            UnknownActorError: The actor has not joined.
            ActorReplacedError: A later incarnation has joined.
            NotReadyError: The learner is stopping.
        """


class EvaluationSink(Protocol):
    """The part of a learner that evaluators need. Many threads call it."""

    def report(self, report: EvaluationReport) -> None:
        """Takes a report. A repeated report has no effect.

        Raises:
            UnknownActorError: The evaluator has not joined this learner.
            ActorReplacedError: A later incarnation has joined.
            InvalidInputError: The learner did not assign this version to the evaluator, or the number of episodes is
                wrong.
        """


class RolloutServicer:
    """Serves actors in lock-step: answers each rollout after the learner has accepted it.

    Each stream occupies one thread of the server.

    Args:
        sink: The learner.
        bytes_in_flight: Memory for the rollouts of all streams.
        max_rollout_bytes: The largest rollout to accept.
        evaluations: Receives the reports of evaluators; None: the run has no evaluations.
    """

    def __init__(
        self,
        sink: RolloutSink,
        bytes_in_flight: BytesInFlight,
        *,
        max_rollout_bytes: int,
        evaluations: EvaluationSink | None = None,
    ) -> None:
        self._sink = sink
        self._evaluations = evaluations
        self._bytes_in_flight = bytes_in_flight
        self._max_rollout_bytes = max_rollout_bytes

    def join(self, request: rollout_pb2.JoinRequest, context: grpc.ServicerContext) -> rollout_pb2.JoinResponse:
        """Serves rollcast.v1.RolloutService.Join."""
        return join_agreement_to_proto(self._sink.join(join_offer_from_proto(request, peer=context.peer())))

    def report_evaluation(
        self, request: rollout_pb2.ReportEvaluationRequest, _context: grpc.ServicerContext
    ) -> rollout_pb2.ReportEvaluationResponse:
        """Serves rollcast.v1.RolloutService.ReportEvaluation."""
        if self._evaluations is None:
            raise RefusedError(NO_EVALUATIONS)
        self._evaluations.report(evaluation_report_from_proto(request))
        return rollout_pb2.ReportEvaluationResponse()

    def stream_rollouts(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serves rollcast.v1.RolloutService.StreamRollouts, with serialised messages."""
        first = next((parse_message(message).request for message in requests), None)
        if first is None:
            return
        if first.WhichOneof("message") != "open":
            raise InvalidRolloutError(
                f"the stream began with {first.WhichOneof('message') or 'an empty message'}; expected open; send the "
                "actor's name and incarnation first"
            )
        stream = self._sink.open_stream(
            shortened(first.open.actor_id, MAX_ACTOR_ID_LENGTH),
            first.open.incarnation,
            peer=context.peer(),
            cancel=context.cancel,
        )
        clean = False
        try:
            with self._bytes_in_flight.stream(
                f"actor {stream.joined.actor_id!r} at {shown_peer(context.peer())}",
                cancel=context.cancel,
                is_active=context.is_active,
            ) as in_flight:
                # Before the first answer, because a relay may wait long for it, and the actor sends activity reports
                # meanwhile.
                receiver = RolloutReceiver(
                    stream,
                    max_rollout_bytes=self._max_rollout_bytes,
                    hold=in_flight.hold,
                    sealed=bool(first.digest),
                )
                progress, policy = stream.progress(), None
                takes_policies = first.open.takes_policies
                if takes_policies:
                    policy = stream.take_policy(holds_version=first.open.policy_version)
                yield _answer(progress, policy)
                clean = yield from self._serve(stream, requests, context, in_flight, receiver, takes_policies)
        finally:
            stream.close(clean=clean)

    def _serve(
        self,
        stream: RolloutStream,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        in_flight: StreamBytes,
        receiver: RolloutReceiver,
        takes_policies: bool,
    ) -> Generator[bytes, None, bool]:
        """Receives rollouts until the stream ends. Returns whether the actor ended the stream without an error."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return False
        receiver.await_message()
        for message in requests:
            rollout = receiver.receive(message)
            del message  # frees its bytes, because the next steps may wait long
            if receiver.has_failed:
                return True
            if rollout is None:
                continue
            progress = stream.accept(rollout, is_active=context.is_active)
            del rollout
            in_flight.give_back()
            if progress.credit_sequence <= progress.acknowledged_sequence and not progress.end_of_training:
                progress = stream.await_credit(is_active=context.is_active)
            yield _answer(progress, stream.take_policy() if takes_policies else None)
            if progress.end_of_training:
                return True
            receiver.await_message()
        return not any(ended.wait(_CANCELLATION_S) for _ in range(_CANCELLATION_TURNS))


def add_rollout_service(servicer: RolloutServicer, server: grpc.Server) -> None:
    """Adds RolloutService to a server, with a handler that does not copy the bytes of rollouts.

    Args:
        servicer: The servicer.
        server: The server, not yet started.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(
            servicer.join,
            request_deserializer=functools.partial(parse_sealed, rollout_pb2.JoinRequest),
            response_serializer=_sealed,
        ),
        "ReportEvaluation": grpc.unary_unary_rpc_method_handler(
            servicer.report_evaluation,
            request_deserializer=functools.partial(parse_sealed, rollout_pb2.ReportEvaluationRequest),
            response_serializer=_sealed,
        ),
        "StreamRollouts": grpc.stream_stream_rpc_method_handler(
            servicer.stream_rollouts,
            request_deserializer=None,  # without a copy of the bytes, which a relay forwards
            response_serializer=None,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def _sealed(response: rollout_pb2.JoinResponse | rollout_pb2.ReportEvaluationResponse) -> bytes:
    return seal(response.SerializeToString())


def _answer(progress: StreamProgress, policy: EncodedPolicy | None) -> bytes:
    """Returns the sealed answer on a stream. Copies a policy only once."""
    head = progress_to_proto(progress).SerializeToString()
    return seal(head) if policy is None else seal_joined(open_field(head, _POLICY, len(policy.chunk)), policy.chunk)


def progress_to_proto(progress: StreamProgress) -> rollout_pb2.StreamRolloutsResponse:
    """Encodes the progress of a stream, without a digest."""
    return rollout_pb2.StreamRolloutsResponse(**progress_fields(progress))
