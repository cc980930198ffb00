"""Collects samples by the name of their metric, as Prometheus wants them."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_PREFIX: Final = "rollcast_"


class Families:
    """The metrics of one scrape: each has a name, a line of help, and a sample for each set of labels."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def gauge(self, name: str, meaning: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Adds a sample of a value that rises and falls.

        Args:
            name: The name, with its unit and without `rollcast_`: `queue_size`.
            meaning: A line for people; that of the first sample counts.
            value: The value; NaN where it is unknown.
            labels: The labels of the sample; their names are the same for all samples of a name.
        """
        self._add(GaugeMetricFamily, name, meaning, value, labels or {})

    def counter(self, name: str, meaning: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Adds a sample of a value that only grows while the process lives; Prometheus adds `_total` to its name."""
        self._add(CounterMetricFamily, name, meaning, value, labels or {})

    def __iter__(self) -> Iterator[Metric]:
        """Yields the metrics in the order of their first samples."""
        return iter(self._families.values())

    def _add(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        meaning: str,
        value: float,
        labels: Mapping[str, str],
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(f"{_PREFIX}{name}", meaning, labels=list(labels))
        assert isinstance(family, kind), f"{name} is a {family.type} and not a {kind.__name__}"
        family.add_metric(list(labels.values()), value)
