"""Collects samples by metric name, as Prometheus needs them. Iteration imports Prometheus' client."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX: Final = "rollcast_"

_Kind = Literal["gauge", "counter"]


class Families:
    """The metrics of one scrape: each has a name, a line of help, and a sample for each set of labels."""

    def __init__(self) -> None:
        self._meanings: dict[str, tuple[_Kind, str]] = {}
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}

    def gauge(self, name: str, meaning: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Adds a sample of a value that may rise and fall.

        Args:
            name: The name, with its unit and without `rollcast_`: `queue_size`.
            meaning: A line of help. The first sample's line applies to all samples of a name.
            value: The value; NaN if it is unknown.
            labels: The labels of the sample; their names are the same for all samples of a name.
        """
        self._add("gauge", name, meaning, value, labels or {})

    def counter(self, name: str, meaning: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Adds a sample of a value that never decreases in a process. Prometheus adds `_total` to the name."""
        self._add("counter", name, meaning, value, labels or {})

    def __iter__(self) -> "Iterator[Metric]":
        """Yields the metrics in the order of their first samples."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, (kind, meaning) in self._meanings.items():
            samples = self._samples[name]
            make = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
            family = make(f"{_PREFIX}{name}", meaning, labels=list(samples[0][0]))
            for labels, value in samples:
                family.add_metric(list(labels.values()), value)
            yield family

    def _add(self, kind: _Kind, name: str, meaning: str, value: float, labels: Mapping[str, str]) -> None:
        known, _ = self._meanings.setdefault(name, (kind, meaning))
        assert known == kind, f"{name} is a {known} and not a {kind}"
        self._samples.setdefault(name, []).append((labels, value))
