"""Serves KEDA's ExternalScaler: reports the number of actors that a learner wants."""

from collections.abc import Iterator
from typing import Final, Protocol

import grpc

from rollcast.keda import external_scaler_pb2 as messages
from rollcast.keda import external_scaler_pb2_grpc
from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.stream_gate import StreamGate
from rollcast.services.limits.texts import quoted
from rollcast.services.scaling.bounds import ActorBounds

EXTERNAL_SCALER: Final[str] = messages.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
# The only metric. Its target for one replica is 1, so the metric's value is the number of replicas.
WANTED_ACTORS: Final = "wanted_actors"

# Seconds after which a stream checks whether its caller has disconnected or the server stops.
_LOOK_S: Final = 0.5


class WantedActors(Protocol):
    """The number of actors that a learner wants. Many threads call it."""

    def wanted(self) -> int:
        """Returns the number of actors that the learner wants; 0 once training has ended.

        Raises:
            NotReadyError: The learner's status is unknown or too old.
            UnauthenticatedError: The learner does not know the scaler's token.
            PermissionDeniedError: The token's role may not read the status.
        """

    def wait_for_change(self, wanted: int, timeout_s: float) -> None:
        """Waits until the number changes, or until `timeout_s` has passed."""


class ExternalScalerServicer(external_scaler_pb2_grpc.ExternalScalerServicer):
    """Serves KEDA.

    Args:
        source: Provides the wanted number of actors.
        gate: Signals that the server stops.
        bounds: The bounds of this number. A trigger may narrow them.
    """

    def __init__(self, source: WantedActors, gate: StreamGate, bounds: ActorBounds) -> None:
        self._source = source
        self._gate = gate
        self._own_bounds = bounds

    def IsActive(  # noqa: N802  # gRPC's name
        self, request: messages.ScaledObjectRef, context: grpc.ServicerContext
    ) -> messages.IsActiveResponse:
        """Answers whether training continues."""
        del context
        return messages.IsActiveResponse(result=self._wanted(request) > 0)

    def StreamIsActive(  # noqa: N802  # gRPC's name
        self, request: messages.ScaledObjectRef, context: grpc.ServicerContext
    ) -> Iterator[messages.IsActiveResponse]:
        """Answers whether training continues, at once and after every change."""
        self._bounds(request)
        said: bool | None = None
        while context.is_active() and not self._gate.draining:
            wanted = self._source.wanted()
            if (wanted > 0) is not said:
                said = wanted > 0
                yield messages.IsActiveResponse(result=said)
            self._source.wait_for_change(wanted, _LOOK_S)

    def GetMetricSpec(  # noqa: N802  # gRPC's name
        self, request: messages.ScaledObjectRef, context: grpc.ServicerContext
    ) -> messages.GetMetricSpecResponse:
        """Returns the name of the only metric."""
        del context
        self._bounds(request)
        spec = messages.MetricSpec(metricName=WANTED_ACTORS, targetSize=1, targetSizeFloat=1.0)
        return messages.GetMetricSpecResponse(metricSpecs=[spec])

    def GetMetrics(  # noqa: N802  # gRPC's name
        self, request: messages.GetMetricsRequest, context: grpc.ServicerContext
    ) -> messages.GetMetricsResponse:
        """Returns the wanted number of actors.

        Raises:
            InvalidInputError: The scaler has no such metric.
        """
        del context
        if request.metricName != WANTED_ACTORS:
            raise InvalidInputError(
                f"there is no metric {quoted(request.metricName)}; expected {WANTED_ACTORS!r}; request the metric of "
                "GetMetricSpec"
            )
        wanted = self._wanted(request.scaledObjectRef)
        value = messages.MetricValue(metricName=WANTED_ACTORS, metricValue=wanted, metricValueFloat=float(wanted))
        return messages.GetMetricsResponse(metricValues=[value])

    def _wanted(self, asked: messages.ScaledObjectRef) -> int:
        return self._bounds(asked).clamp(self._source.wanted())

    def _bounds(self, asked: messages.ScaledObjectRef) -> ActorBounds:
        bounds = ActorBounds.from_metadata(asked.scalerMetadata)
        bounds.check_within(self._own_bounds)
        return bounds
