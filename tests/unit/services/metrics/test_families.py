import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from rollcast.services.metrics.families import Families


def as_text(families: Families) -> list[str]:
    class Collected(Collector):
        def collect(self):
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry).decode().splitlines()


def test_samples_of_a_name_are_one_metric():
    families = Families()
    families.gauge("actors", "by state", 2, {"state": "lost"})
    families.counter("updates", "made", 7)
    families.gauge("actors", "by state", 3, {"state": 'a "b"\n'})
    families.gauge("mean_return", "unknown so far", float("nan"))
    assert as_text(families) == [
        "# HELP rollcast_actors by state",
        "# TYPE rollcast_actors gauge",
        'rollcast_actors{state="lost"} 2.0',
        'rollcast_actors{state="a \\"b\\"\\n"} 3.0',
        "# HELP rollcast_updates_total made",
        "# TYPE rollcast_updates_total counter",
        "rollcast_updates_total 7.0",
        "# HELP rollcast_mean_return unknown so far",
        "# TYPE rollcast_mean_return gauge",
        "rollcast_mean_return NaN",
    ]


def test_a_name_is_of_one_kind():
    families = Families()
    families.gauge("updates", "", 1)
    with pytest.raises(AssertionError, match="updates is a gauge"):
        families.counter("updates", "", 1)
