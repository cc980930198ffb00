"""Keeps the newest metrics of a run, for the scrapes of Prometheus."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollcast.learner.writers import metric_names
from rollcast.learner.writers.exported_names import exported_name
from rollcast.services.metrics.families import Families
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase

# Values that a learner knows at any moment, also while the trainer waits and writes no record. What
# is since the last record is not among them.
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
# Series of a name that never comes back would be scraped for as long as the learner runs.
_THERE: Final = (ActorState.JOINED, ActorState.STREAMING)
_REMEMBERED_S: Final = 900.0


class PrometheusWriter:
    """A writer that keeps the newest value of every metric; `collect` returns them with what the learner knows now.

    Records come from the trainer's thread, scrapes from threads of the server.

    Args:
        status: Returns the state of training; any thread may call it.
        actors: Returns the state of every actor; likewise.
    """

    def __init__(self, status: Callable[[], LearnerStatus], actors: Callable[[], Sequence[ActorInfo]]) -> None:
        self._status = status
        self._actors = actors
        # Replaced as a whole, so that a scrape sees all of a record or nothing of it.
        self._newest: Mapping[str, float] = {}

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Keeps the values of a record; see `MetricsWriter.write`. Values that a record lacks stay unchanged."""
        del env_steps
        self._newest = {**self._newest, **metrics}

    def close(self) -> None:
        """Does nothing: the values are served until the process ends."""

    def collect(self) -> Families:
        """Returns the metrics of this moment."""
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
    families.counter("train_env_steps", "environment steps that were learnt from", status.env_steps)
    families.counter("train_seconds", "time of training, with that before it was resumed", status.seconds)
    families.gauge("learner_waiting_seconds", "time for which training has waited; 0 while it trains", status.waiting_s)
    families.gauge("queue_capacity", "trajectories that the queue holds at most", status.queue_capacity)
    families.gauge("actors_expected", "actors that the learner starts itself; 0 if others do", status.actors_expected)


def add_actors(families: Families, actors: Sequence[ActorInfo]) -> None:
    """Adds a server's numbers of its actors: connected ones, and those that left within a quarter of an hour."""
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
        families.gauge(
            "learner_actor_incarnation", "1, and one more for each return of an actor", info.incarnation, labels
        )
