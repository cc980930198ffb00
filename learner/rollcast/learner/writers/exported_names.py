"""Defines the Prometheus names of a learner's metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rollcast.learner.writers.metric_names import ALGORITHM_METRICS, EVENT_METRICS, METRICS, Metric

_KNOWN: Final = {metric.tag: metric for metric in (*METRICS, *ALGORITHM_METRICS, *EVENT_METRICS)}
# Prometheus wants base units at the end of a name: the end of a tag, that of the name, and the factor between them.
_UNITS: Final = (("_ms", "_seconds", 1e-3), ("_s", "_seconds", 1.0), ("_fraction", "_ratio", 1.0))
_OWN: Final = "reported"
_OWN_MEANING: Final = "values that events or an algorithm of your own report, by their tag"


@dataclass(frozen=True, slots=True)
class ExportedName:
    """The name of a value in Prometheus.

    Attributes:
        name: The name without `rollcast_`, and without the `_total` of a counter.
        meaning: A line of explanation.
        labels: The substep if there are several; the tag for custom events and algorithms.
        factor: The factor that converts the value to the unit in the name.
        counts: True for a counter.
    """

    name: str
    meaning: str
    labels: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0
    counts: bool = False

    @property
    def whole(self) -> str:
        """The full name in Prometheus."""
        return f"rollcast_{self.name}" + ("_total" if self.counts else "")


def exported_name(tag: str) -> ExportedName:
    """Returns the Prometheus name of a value.

    Args:
        tag: The value's tag: `replay/size`; with several substeps `replay/KEY/size`.
    """
    metric = _KNOWN.get(tag)
    if metric is not None:
        return _of(metric, {})
    group, _, rest = tag.partition("/")
    key, _, name = rest.rpartition("/")
    metric = _KNOWN.get(f"{group}/{name}")
    if metric is not None and key:
        return _of(metric, {"substep": key})
    return ExportedName(_OWN, _OWN_MEANING, {"tag": tag})


def _of(metric: Metric, labels: Mapping[str, str]) -> ExportedName:
    name, factor = metric.tag.replace("/", "_"), 1.0
    for end, unit, of_unit in _UNITS:
        if name.endswith(end):
            name, factor = name.removesuffix(end) + unit, of_unit
            break
    return ExportedName(name, metric.meaning, labels, factor, metric.counts)
