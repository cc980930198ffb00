"""Serves LearnerService: reports a learner's status and executes operators' commands."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import grpc

from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.status.codec import actor_to_proto, status_to_proto
from rollcast.services.status.description import LearnerDescription, LearnerLimits
from rollcast.services.status.description_codec import description_to_proto
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.status.watching import turns
from rollcast.v1 import learner_pb2, learner_pb2_grpc

# A page of actors ends with the actor that reaches this size. An actor has a few kilobytes at most.
_PAGE_BYTES: Final = 1 << 20


class LearnerControl(Protocol):
    """The part of a learner that LearnerServicer needs. Many threads call it."""

    def describe(self) -> LearnerDescription:
        """Describes the learner, without the limits, which the servicer adds.

        Raises:
            NotReadyError: The learner does not know its spaces yet.
        """

    def status(self) -> LearnerStatus:
        """Returns the state of training, at once and in every phase."""

    def actors(self) -> Sequence[ActorInfo]:
        """Returns every actor that has joined, by slot."""

    def pause(self) -> None:
        """Pauses training, and returns when no update is running. Idempotent.

        Raises:
            RefusedError: Training has ended.
        """

    def resume(self) -> None:
        """Ends a pause. No effect without a pause."""

    def save_checkpoint(self) -> tuple[str, int]:
        """Writes a checkpoint between two updates.

        Returns:
            The checkpoint's folder, and its policy version.

        Raises:
            RefusedError: The run has no directory.
        """

    def request_stop(self) -> None:
        """Ends training after the running update. Returns at once."""


class LearnerServicer(learner_pb2_grpc.LearnerServiceServicer):
    """Serves operators.

    Args:
        control: The learner.
        gate: Signals that the server stops; shared with the server's other services.
        refusals: The recently refused or throttled clients, for the status.
        limits: The server's limits.
    """

    def __init__(self, control: LearnerControl, gate: StreamGate, refusals: Refusals, limits: Limits) -> None:
        self._control = control
        self._limits = LearnerLimits(**dataclasses.asdict(limits))
        self._gate = gate
        self._refusals = refusals

    def _status(self) -> LearnerStatus:
        return dataclasses.replace(self._control.status(), throttled=self._refusals.lately())

    def DescribeLearner(  # noqa: N802
        self, request: learner_pb2.DescribeLearnerRequest, context: grpc.ServicerContext
    ) -> learner_pb2.DescribeLearnerResponse:
        """Serves rollcast.v1.LearnerService.DescribeLearner."""
        del request, context
        description = dataclasses.replace(self._control.describe(), limits=self._limits)
        return learner_pb2.DescribeLearnerResponse(description=description_to_proto(description))

    def GetStatus(  # noqa: N802
        self, request: learner_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> learner_pb2.GetStatusResponse:
        """Serves rollcast.v1.LearnerService.GetStatus."""
        del request, context
        return learner_pb2.GetStatusResponse(status=status_to_proto(self._status()))

    def WatchStatus(  # noqa: N802
        self, request: learner_pb2.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[learner_pb2.WatchStatusResponse]:
        """Serves rollcast.v1.LearnerService.WatchStatus."""
        for _ in turns(request.interval_s, context, self._gate, self._is_over):
            status = self._status()
            yield learner_pb2.WatchStatusResponse(status=status_to_proto(status))
            if status.phase is Phase.FINISHED:
                return

    def _is_over(self) -> bool:
        return self._control.status().phase is Phase.FINISHED

    def ListActors(  # noqa: N802
        self, request: learner_pb2.ListActorsRequest, context: grpc.ServicerContext
    ) -> learner_pb2.ListActorsResponse:
        """Serves rollcast.v1.LearnerService.ListActors."""
        del context
        response = learner_pb2.ListActorsResponse()
        n_bytes = 0
        for actor in self._control.actors():
            if actor.slot < request.min_slot:
                continue
            if n_bytes > _PAGE_BYTES:
                response.next_slot = actor.slot
                break
            response.actors.append(proto := actor_to_proto(actor))
            n_bytes += proto.ByteSize()
        return response

    def Pause(self, request: learner_pb2.PauseRequest, context: grpc.ServicerContext) -> learner_pb2.PauseResponse:  # noqa: N802
        """Serves rollcast.v1.LearnerService.Pause."""
        del request, context
        self._control.pause()
        return learner_pb2.PauseResponse()

    def Resume(self, request: learner_pb2.ResumeRequest, context: grpc.ServicerContext) -> learner_pb2.ResumeResponse:  # noqa: N802
        """Serves rollcast.v1.LearnerService.Resume."""
        del request, context
        self._control.resume()
        return learner_pb2.ResumeResponse()

    def SaveCheckpoint(  # noqa: N802
        self, request: learner_pb2.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> learner_pb2.SaveCheckpointResponse:
        """Serves rollcast.v1.LearnerService.SaveCheckpoint."""
        del request, context
        path, version = self._control.save_checkpoint()
        return learner_pb2.SaveCheckpointResponse(path=path, policy_version=version)

    def Stop(self, request: learner_pb2.StopRequest, context: grpc.ServicerContext) -> learner_pb2.StopResponse:  # noqa: N802
        """Serves rollcast.v1.LearnerService.Stop."""
        del request, context
        self._control.request_stop()
        return learner_pb2.StopResponse()
