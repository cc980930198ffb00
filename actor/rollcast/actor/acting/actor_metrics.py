"""The metrics of an actor process, for Prometheus."""

import time
from typing import TYPE_CHECKING, Final

from rollcast.actor.acting.state_clock import StateClock
from rollcast.services.environments.latencies import Latencies
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.metrics.families import Families
from rollcast.services.process.usage import usage_with_children
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.version import software_version

if TYPE_CHECKING:
    from rollcast.actor.dialling.supply import DialledSupply
    from rollcast.actor.inference.central import CentralInference
    from rollcast.actor.inference.engine import InferenceEngine

_LABELS: Final = {state: state.name.lower() for state in ActingState}


class ActorMetrics:
    """Counts an actor's work, and reports its current state. The main thread writes; any thread may collect.

    Attributes:
        clock: Adds up the time by state.
    """

    def __init__(self) -> None:
        self.clock = StateClock(ActingState)
        self._env_steps = 0
        self._rollouts = 0
        self._episodes = 0
        self._dropped_episodes = 0
        self._policy_version = 0
        # one tuple, so that a reader never combines the version and the time of different states
        self._applied = (0, time.monotonic())
        self._n_envs = 0
        self._name = ""
        self._served: tuple[DialledSupply, InferenceEngine] | None = None
        self._central: CentralInference | None = None

    def serves(self, environments: "DialledSupply", engine: "InferenceEngine") -> None:
        """Adds the metrics of environments that dial in, and of inference for other actors."""
        self._served = environments, engine

    def asks(self, central: "CentralInference") -> None:
        """Adds the metrics of central inference, which computes the policy."""
        self._central = central

    def joined(self, actor_id: str, n_envs: int) -> None:
        """Records the agreed name and number of environments."""
        self._name, self._n_envs = actor_id, n_envs

    def loaded(self, version: int) -> None:
        """Records that the actor now acts with this policy version."""
        self._applied = version, time.monotonic()

    def activity(self) -> ActorActivity:
        """Returns the time that the actor has spent in each state, and its current policy version."""
        version, since = self._applied
        usage = usage_with_children()
        answers: tuple[float, ...] = (0.0, 0.0)
        if self._served is not None:
            answers = self._served[0].latencies.percentiles(50, 99)
        elif self._central is not None:
            answers = self._central.latencies.percentiles(50, 99)
        return ActorActivity(
            state=self.clock.state,
            seconds=self.clock.in_order(),
            policy_version=version,
            policy_age_s=time.monotonic() - since,
            dropped_episodes=self._dropped_episodes,
            cpu_s=usage.cpu_s,
            memory_bytes=usage.memory_bytes,
            answer_p50_s=answers[0],
            answer_p99_s=answers[1],
        )

    def sent(self, rollout: Rollout, *, dropped_episodes: int = 0) -> None:
        """Counts a rollout before the actor sends it, and sets the number of dropped episodes."""
        self._dropped_episodes = dropped_episodes
        self._env_steps += rollout.n_env_steps
        self._rollouts += 1
        self._episodes += int((rollout.terminated | rollout.truncated).sum())
        self._policy_version = rollout.policy_version

    def collect(self) -> Families:
        """Returns the current metrics."""
        families = Families()
        about = {"version": software_version(), "actor": self._name}
        families.gauge("actor_info", "always 1; labelled with version and name", 1, about)
        families.gauge("actor_environments", "environments that the actor steps together", self._n_envs)
        families.counter("actor_env_steps", "environment steps in the actor's rollouts", self._env_steps)
        families.counter("actor_rollouts", "rollouts that the actor has made", self._rollouts)
        families.counter("actor_episodes", "episodes that have ended in the actor's rollouts", self._episodes)
        families.counter(
            "actor_dropped_episodes", "episodes dropped because the environment raised, or left", self._dropped_episodes
        )
        families.gauge("actor_policy_version", "policy version of the actor's last rollout", self._policy_version)
        for state, seconds in self.clock.seconds().items():
            labels = {"state": _LABELS[state]}
            families.counter("actor_state_seconds", "time of the main thread by state", seconds, labels)
        if self._served is not None:
            dialled, engine = self._served
            environments = dialled.environments
            families.gauge("actor_clients", "clients whose environments have dialled in", environments.n_clients)
            families.gauge("actor_live_environments", "environments that have dialled in", environments.n_live)
            _collect_answers(families, "actor", "requests for actions", dialled.latencies)
            families.counter("actor_batches", "batches of answered requests for actions", environments.n_batches)
            _collect_answers(
                families, "actor_served_inference", "questions of other actors", dialled.inference_latencies
            )
            families.counter("actor_served_inference_batches", "forward passes for other actors", engine.n_batches)
        if self._central is not None:
            _collect_answers(families, "actor_inference", "questions to central inference", self._central.latencies)
            families.counter("actor_inference_alone", "forward passes without central inference", self._central.n_alone)
        return families


def _collect_answers(families: Families, name: str, what: str, latencies: Latencies) -> None:
    families.counter(f"{name}_answers", f"{what} that were answered", latencies.n_noted)
    for quantile, seconds in zip((0.5, 0.99), latencies.percentiles(50, 99), strict=True):
        families.gauge(
            f"{name}_answer_seconds",
            f"time of the answers to {what}, a quantile of the last 8192",
            seconds,
            {"quantile": f"{quantile:g}"},
        )
