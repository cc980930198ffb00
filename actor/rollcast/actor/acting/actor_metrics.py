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
    """The counts of an actor, and its state now. Its main thread writes; any thread may collect.

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
        # one tuple, so that a reader never sees one version with the time of another
        self._applied = (0, time.monotonic())
        self._n_envs = 0
        self._name = ""
        self._served: tuple[DialledSupply, InferenceEngine] | None = None
        self._central: CentralInference | None = None

    def serves(self, environments: "DialledSupply", engine: "InferenceEngine") -> None:
        """Notes that environments dial in, and that other actors ask, for their numbers."""
        self._served = environments, engine

    def asks(self, central: "CentralInference") -> None:
        """Notes that central inference computes the policy, for its numbers."""
        self._central = central

    def joined(self, actor_id: str, n_envs: int) -> None:
        """Notes the agreement with the learner."""
        self._name, self._n_envs = actor_id, n_envs

    def loaded(self, version: int) -> None:
        """Notes that the actor acts with a policy from now on."""
        self._applied = version, time.monotonic()

    def activity(self) -> ActorActivity:
        """Returns how the actor has spent its time so far, and with which policy it acts."""
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
        """Counts a rollout that is passed to the connection, and sets the number of dropped episodes."""
        self._dropped_episodes = dropped_episodes
        self._env_steps += rollout.n_env_steps
        self._rollouts += 1
        self._episodes += int((rollout.terminated | rollout.truncated).sum())
        self._policy_version = rollout.policy_version

    def collect(self) -> Families:
        """Returns the metrics of this moment."""
        families = Families()
        about = {"version": software_version(), "actor": self._name}
        families.gauge("actor_info", "1; its labels say what runs", 1, about)
        families.gauge("actor_environments", "environments that it steps at once", self._n_envs)
        families.counter("actor_env_steps", "environment steps in the rollouts that it has made", self._env_steps)
        families.counter("actor_rollouts", "rollouts that it has made", self._rollouts)
        families.counter("actor_episodes", "episodes that have ended in them", self._episodes)
        families.counter(
            "actor_dropped_episodes", "episodes dropped because the environment raised, or left", self._dropped_episodes
        )
        families.gauge("actor_policy_version", "policy version with which it acted last", self._policy_version)
        for state, seconds in self.clock.seconds().items():
            labels = {"state": _LABELS[state]}
            families.counter("actor_state_seconds", "time by what its main thread does", seconds, labels)
        if self._served is not None:
            dialled, engine = self._served
            environments = dialled.environments
            families.gauge("actor_clients", "clients whose environments have dialled in", environments.n_clients)
            families.gauge("actor_live_environments", "environments that have dialled in", environments.n_live)
            _collect_answers(families, "actor", "requests for actions", dialled.latencies)
            families.counter("actor_batches", "batches in which they were answered", environments.n_batches)
            _collect_answers(
                families, "actor_served_inference", "questions of other actors", dialled.inference_latencies
            )
            families.counter("actor_served_inference_batches", "forward passes that answered them", engine.n_batches)
        if self._central is not None:
            _collect_answers(families, "actor_inference", "questions to central inference", self._central.latencies)
            families.counter("actor_inference_alone", "forward passes without its answer", self._central.n_alone)
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
