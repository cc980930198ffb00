"""Serves RolloutService: actors join and stream their rollouts; sees the learner through two Protocols."""

import functools
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, Protocol

import grpc

from rollcast.services.errors import DamagedMessageError, InvalidRolloutError, RefusedError, RollcastError
from rollcast.services.limits.bytes_in_flight import BytesInFlight, StreamBytes
from rollcast.services.policies.evaluated import NO_EVALUATIONS
from rollcast.services.rollouts.activity import ActorActivity
from rollcast.services.rollouts.activity_codec import ActivityRate, activity_from_proto
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.rollouts.evaluation import EvaluationReport
from rollcast.services.rollouts.evaluation_codec import evaluation_report_from_proto
from rollcast.services.rollouts.join import JoinAgreement, JoinOffer
from rollcast.services.rollouts.join_codec import join_agreement_to_proto, join_offer_from_proto
from rollcast.services.rollouts.rollouts import ActorFailure, Rollout, StreamProgress, failure_fields, progress_fields
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.wire.message_body import split_body
from rollcast.services.wire.seal import damaged, find_seal, matches_seal, parse_sealed, seal
from rollcast.v1 import rollout_pb2

_log = logging.getLogger(__name__)

# gRPC reports the end of the requests a moment before it reports a cancelled call or a lost connection. After the
# actor's half-close the call lives on; waiting for that moment tells the two apart.
_CANCELLATION_S: Final = 0.1

_SERVICE: Final = "rollcast.v1.RolloutService"


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


class RolloutStream(Protocol):
    """One actor's open stream as the learner sees it. Called from the one thread that serves the stream."""

    @property
    def actor_id(self) -> str:
        """The actor's name."""

    @property
    def incarnation(self) -> int:
        """The number of the actor's process."""

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces agreed at Join."""

    @property
    def n_rollout_steps(self) -> int:
        """T of its rollouts."""

    @property
    def n_envs(self) -> int:
        """B of its rollouts."""

    @property
    def state_size(self) -> int:
        """S of the recurrent state in its rollouts; 0 if the policy is not recurrent."""

    @property
    def frame_stack(self) -> int:
        """K, the frames that the policy sees at once."""

    @property
    def activity_interval_s(self) -> float:
        """Seconds between two reports of the actor's time, as agreed at Join; 0: none."""

    def progress(self) -> StreamProgress:
        """Returns the stream's progress, which is sent as soon as it opens."""

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        """Takes a rollout; waits while the queue is full, which slows the actor down.

        Args:
            rollout: A rollout checked against the agreement. The stream must not use its arrays afterwards.
            is_active: Returns whether the caller is still there; to be called at least every second while waiting.

        Returns:
            The stream's progress now.

        Raises:
            DuplicateSequenceError: The sequence came on this stream before.
            MissingMessageError: Its sequence leaves a gap.
            LimitExceededError: Its sequence is above the credit.
            ActorReplacedError: Another process has joined under the same name.
        """

    def awaits_message(self, awaits: bool) -> None:
        """Notes whether the stream now waits for the actor's next message.

        Args:
            awaits: Whether it waits.
        """

    def acted(self, activity: ActorActivity) -> None:
        """Takes a report of the actor's time. It is no progress, and needs no credit.

        Args:
            activity: The report.
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


class RolloutSink(Protocol):
    """The learner as RolloutServicer sees it. Called from many threads."""

    def join(self, offer: JoinOffer) -> JoinAgreement:
        """Agrees with an actor.

        Args:
            offer: The offer, already validated.

        Raises:
            SpacesMismatchError: The actor's spaces are not the learner's.
            ProtocolMismatchError: The actor's policy network is not the learner's.
            LimitExceededError: No more actors are allowed.
            NotReadyError: The learner is starting or stopping.
            TrainingEndedError: Training has ended.
        """

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> RolloutStream:
        """Opens an actor's stream.

        Args:
            actor_id: The actor.
            incarnation: The number of its process.
            peer: The caller's address, as gRPC names it.
            cancel: Ends the stream from any thread; for a stream that is replaced while its actor is silent. The actor
                sees an error and reconnects. A stream that still talks should get an error from `accept` instead.

        Raises:
            UnknownActorError: The actor has not joined.
            ActorReplacedError: A later incarnation has joined.
            NotReadyError: The learner is stopping.
        """


class EvaluationSink(Protocol):
    """The learner as evaluators see it. Called from many threads."""

    def report(self, report: EvaluationReport) -> None:
        """Takes a report; one that it has already changes nothing.

        Raises:
            UnknownActorError: The evaluator has not joined this learner.
            ActorReplacedError: A later incarnation has joined.
            InvalidInputError: It was not given that version, or has played another number of episodes than agreed.
        """


class RolloutServicer:
    """Serves actors in lock-step: each rollout is answered once it has been accepted.

    Each stream holds one thread of the server, which waits with its actor.

    Args:
        sink: The learner.
        bytes_in_flight: Memory for the rollouts of all streams.
        max_rollout_bytes: The largest rollout to accept.
        evaluations: Takes the reports of evaluators; None: this learner evaluates no policies.
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

    def stream_rollouts(
        self, requests: Iterator[RequestWithBody], context: grpc.ServicerContext
    ) -> Iterator[rollout_pb2.StreamRolloutsResponse]:
        """Serves rollcast.v1.RolloutService.StreamRollouts."""
        first = next((message.request for message in requests), None)
        if first is None:
            return
        if first.WhichOneof("message") != "open":
            raise InvalidRolloutError(
                f"the stream began with {first.WhichOneof('message') or 'an empty message'}; expected open; send the "
                "actor's name and incarnation first"
            )
        stream = self._sink.open_stream(
            first.open.actor_id, first.open.incarnation, peer=context.peer(), cancel=context.cancel
        )
        clean = False
        try:
            yield _response(stream.progress())
            with self._bytes_in_flight.stream(
                f"actor {stream.actor_id!r} at {context.peer()}", cancel=context.cancel, is_active=context.is_active
            ) as in_flight:
                clean = yield from self._serve(stream, requests, context, in_flight, sealed=bool(first.digest))
        finally:
            stream.close(clean=clean)

    def _serve(
        self,
        stream: RolloutStream,
        requests: Iterator[RequestWithBody],
        context: grpc.ServicerContext,
        in_flight: StreamBytes,
        *,
        sealed: bool,
    ) -> Generator[rollout_pb2.StreamRolloutsResponse, None, bool]:
        """Receives rollouts until the stream ends; returns whether it ended as agreed."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return False
        assembler = RolloutAssembler(
            stream.spaces,
            stream.n_rollout_steps,
            stream.n_envs,
            self._max_rollout_bytes,
            actor_id=stream.actor_id,
            incarnation=stream.incarnation,
            state_size=stream.state_size,
            frame_stack=stream.frame_stack,
            hold=in_flight.hold,
        )
        rate = ActivityRate(stream.activity_interval_s, actor_id=stream.actor_id)
        while True:
            try:
                stream.awaits_message(True)
                message = _next_but_reports(requests, stream, rate, sealed=sealed)
                stream.awaits_message(False)
                if message is None:
                    return not ended.wait(_CANCELLATION_S)
                if message.request.HasField("failure"):
                    stream.fail(ActorFailure(**failure_fields(message.request.failure)))
                    continue
                rollout = assembler.add(*message)
            except DamagedMessageError as error:  # not `rejected`: the actor did nothing wrong
                _log.warning("actor %r must send a message again: %s", stream.actor_id, error)
                raise
            except RollcastError as error:
                stream.rejected(error)
                raise
            del message  # frees its bytes; `accept` may wait for long
            if rollout is not None:
                progress = stream.accept(rollout, is_active=context.is_active)
                del rollout
                in_flight.give_back()
                yield _response(progress)
                if progress.end_of_training:
                    return True


def _next_but_reports(
    requests: Iterator[RequestWithBody], stream: RolloutStream, rate: ActivityRate, *, sealed: bool
) -> RequestWithBody | None:
    """Returns the next message that is no report of the actor's time; hands the reports before it to the stream.

    The stream goes on waiting for its actor's next message meanwhile: a report says nothing of a rollout that was lost.
    """
    for message in requests:
        if sealed and not message.request.digest:
            raise damaged("it has no digest, and the first of its stream had one")
        if not message.request.HasField("activity"):
            return message
        if rate.count():
            activity = activity_from_proto(message.request.activity, actor_id=stream.actor_id)
            if activity is not None:
                stream.acted(activity)
    return None


def add_rollout_service(servicer: RolloutServicer, server: grpc.Server) -> None:
    """Adds RolloutService to a server, with a handler that leaves the bytes of rollouts in place.

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
            request_deserializer=parse_request,
            response_serializer=_sealed,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def _sealed(
    response: rollout_pb2.JoinResponse | rollout_pb2.StreamRolloutsResponse | rollout_pb2.ReportEvaluationResponse,
) -> bytes:
    return seal(response.SerializeToString())


def _response(progress: StreamProgress) -> rollout_pb2.StreamRolloutsResponse:
    return rollout_pb2.StreamRolloutsResponse(**progress_fields(progress))
