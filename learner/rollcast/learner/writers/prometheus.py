"""Keeps the newest metrics of a run for Prometheus scrapes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollcast.learner.writers import metric_names
from rollcast.learner.writers.exported_names import exported_name
from rollcast.services.metrics.families import Families
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase

# Values that a learner knows at any moment, also while the trainer waits and writes no record. Values since the last
# record are not included.
_LIVE: Final[Mapping[str, Callable[[LearnerStatus], float | None]]] = {
    metric_names.MEAN_RETURN.tag: lambda status: status.mean_return,
    metric_names.EPISODES.tag: lambda status: status.episodes,
    metric_names.UPDATES.tag: lambda status: status.updates,
    metric_names.POLICY_VERSION.tag: lambda status: status.policy_version,
    metric_names.ENV_STEPS_PER_SECOND.tag: lambda status: status.env_steps_per_second,
    metric_names.UPDATES_PER_SECOND.tag: lambda status: status.updates_per_second,
    metric_names.QUEUE_SIZE.tag: lambda status: status.queue_size,
    metric_names.STALE_TRAJECTORIES.tag: lambda status: status.stale_trajectories,
    metric_names.DUPLICATE_ROLLOUTS.tag: lambda status: status.duplicate_rollouts,
    metric_names.REJECTED_ROLLOUTS.tag: lambda status: status.rejected_rollouts,
    metric_names.ACTORS_ALIVE.tag: lambda status: status.actors_alive,
    metric_names.DROPPED_EPISODES.tag: lambda status: status.dropped_episodes,
}
# Series under a name that never returns would be scraped for the learner's whole life.
_THERE: Final = (ActorState.JOINED, ActorState.STREAMING)
_REMEMBERED_S: Final = 900.0


class PrometheusWriter:
    """A writer that keeps the newest value of every metric; `collect` adds the learner's present state.

    Records come from the trainer's thread, scrapes from server threads.

    Args:
        status: Returns the state of training; any thread may call it.
        actors: Returns the state of every actor; any thread may call it.
    """

    def __init__(self, status: Callable[[], LearnerStatus], actors: Callable[[], Sequence[ActorInfo]]) -> None:
        self._status = status
        self._actors = actors
        # Replaced as a whole, so that a scrape sees all of a record or none of it.
        self._newest: Mapping[str, float] = {}

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Keeps the values of a record; see `MetricsWriter.write`. Values that a record lacks stay unchanged."""
        del env_steps
        self._newest = {**self._newest, **metrics}

    def close(self) -> None:
        """Does nothing: the values are served until the process ends."""

    def collect(self) -> Families:
        """Returns the present metrics."""
        status, families = self._status(), Families()
        _add_learner(families, status)
        live = {tag: value(status) for tag, value in _LIVE.items()}
        add_values(families, {**self._newest, **live})
        add_actors(families, self._actors())
        return families


def add_values(families: Families, values: Mapping[str, float | None]) -> None:
    """Adds the values of a record by their tags; None: unknown."""
    for tag, value in values.items():
        place = exported_name(tag)
        add = families.counter if place.counts else families.gauge
        add(place.name, place.meaning, float("nan") if value is None else value * place.factor, place.labels)


def _add_learner(families: Families, status: LearnerStatus) -> None:
    about = {"version": status.software_version, "algorithm": status.algorithm, "run_dir": status.run_dir}
    families.gauge("learner_info", "1; its labels say what runs", 1, about)
    for phase in Phase:
        labels = {"phase": phase.name.lower()}
        families.gauge("learner_phase", "1 for the phase of training, 0 for the others", status.phase is phase, labels)
    families.counter("train_env_steps", "environment steps of training", status.env_steps)
    families.counter("train_seconds", "time of training, including earlier processes", status.seconds)
    families.gauge("learner_waiting_seconds", "time for which training has waited; 0 while it trains", status.waiting_s)
    families.gauge("queue_capacity", "largest number of trajectories in the queue", status.queue_capacity)
    families.gauge("actors_expected", "actors that the learner starts; 0: none", status.actors_expected)


def add_actors(families: Families, actors: Sequence[ActorInfo]) -> None:
    """Adds a server's numbers for its actors: connected actors, and actors that left within the last 15 minutes."""
    actors = [info for info in actors if info.state in _THERE or info.idle_s < _REMEMBERED_S]
    states = Counter(info.state for info in actors)
    for state in ActorState:
        families.gauge(
            "learner_actors", "actors by the state of their connection", states[state], {"state": state.name.lower()}
        )
    for info in actors:
        labels = {"actor": info.actor_id}
        families.counter("learner_actor_env_steps", "environment steps that an actor has sent", info.env_steps, labels)
        families.counter("learner_actor_rollouts", "rollouts that an actor has sent", info.rollouts, labels)
        if info.state is ActorState.STREAMING:
            families.gauge("learner_actor_idle_seconds", "time since an actor's last rollout", info.idle_s, labels)
        families.gauge(
            "learner_actor_policy_version", "version that played an actor's last rollout", info.policy_version, labels
        )
        families.gauge("learner_actor_incarnation", "processes under an actor's name so far", info.incarnation, labels)
