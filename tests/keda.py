"""A client that asks a scaler over KEDA's contract, and computes replicas as KEDA and Kubernetes do."""

import math
from collections.abc import Iterator
from typing import Self

import grpc

from rollcast.keda import external_scaler_pb2 as messages
from rollcast.keda import external_scaler_pb2_grpc
from tests.processes import DEADLINE_S

# Kubernetes changes nothing while the ratio to what there is differs by less.
_TOLERANCE = 0.1


class Keda:
    """KEDA's operator for one ScaledObject.

    Args:
        address: The scaler's "host:port".
        metadata: The trigger's metadata, beside the address.
        credentials: TLS, as the trigger's authentication gives it; None: plain TCP.
        host: The host by which KEDA calls the scaler, for TLS; None: the one of `address`.
        timeout_s: The longest wait for an answer, in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        metadata: dict[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        host: str | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> None:
        options = [] if host is None else [("grpc.ssl_target_name_override", host)]
        self._channel = (
            grpc.insecure_channel(address)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self._timeout_s = timeout_s
        self._stub = external_scaler_pb2_grpc.ExternalScalerStub(self._channel)
        self._asked = messages.ScaledObjectRef(
            name="actor", namespace="default", scalerMetadata={"scalerAddress": address} | (metadata or {})
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()

    def is_active(self) -> bool:
        return bool(self._stub.IsActive(self._asked, timeout=self._timeout_s, wait_for_ready=True).result)

    def stream_is_active(self) -> Iterator[bool]:
        for response in self._stub.StreamIsActive(self._asked, timeout=self._timeout_s, wait_for_ready=True):
            yield bool(response.result)

    def metric(self, name: str | None = None) -> float:
        """Returns the value of a metric; None: of the one that the scaler names."""
        if name is None:
            (spec,) = self._stub.GetMetricSpec(self._asked, timeout=self._timeout_s, wait_for_ready=True).metricSpecs
            assert spec.targetSizeFloat == spec.targetSize == 1
            name = spec.metricName
        request = messages.GetMetricsRequest(scaledObjectRef=self._asked, metricName=name)
        (value,) = self._stub.GetMetrics(request, timeout=self._timeout_s, wait_for_ready=True).metricValues
        assert value.metricName == name
        # KEDA takes the whole number where the other is 0
        assert value.metricValueFloat == value.metricValue
        return float(value.metricValue)

    def replicas(self, current: int) -> int:
        """Returns the replicas that the workload gets: from KEDA 0 or 1, and above from its HorizontalPodAutoscaler."""
        if not self.is_active():
            return 0
        if current == 0:
            return 1
        value = self.metric()
        return current if abs(value / current - 1) <= _TOLERANCE else max(1, math.ceil(value))
