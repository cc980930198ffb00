"""The numbers that an actor shows to Prometheus."""

from rollcast.actor.acting.actor_metrics import ActorMetrics


def figures(metrics: ActorMetrics, prefix: str = "rollcast_actor_") -> dict[tuple[str, str | None], float]:
    """Returns the samples whose names have a prefix, by the rest of the name and the quantile."""
    samples = (sample for family in metrics.collect() for sample in family.samples)
    return {
        (sample.name.removeprefix(prefix), sample.labels.get("quantile")): sample.value
        for sample in samples
        if sample.name.startswith(prefix)
    }
