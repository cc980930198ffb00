"""Defines the status of a learner and its actors."""

import enum
from dataclasses import dataclass

from rollcast.services.joining.activity import ActingState
from rollcast.services.limits.refusals import Throttled
from rollcast.services.replay.replay import ReplayStatus


class Phase(enum.Enum):
    """The phase of a learner."""

    STARTING = 1
    TRAINING = 2
    PAUSED = 3
    STOPPING = 4
    FINISHED = 5


class ActorState(enum.Enum):
    """The state of an actor's connection."""

    JOINED = 1
    STREAMING = 2
    LOST = 3
    LEFT = 4
    FAILED = 5
    REFUSED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStatus:
    """The evaluation of policies during training. `rollcast.v1.EvaluationStatus` documents the fields."""

    evaluators_alive: int = 0
    evaluations: int = 0
    skipped: int = 0
    policy_version: int = 0
    env_steps: int = 0
    mean_return: float = 0.0
    ci_low: float = 0.0
    ci_high: float = 0.0
    best_policy_version: int = 0
    best_mean_return: float = 0.0
    without_improvement: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class LearningFinding:
    """A problem of training. `rollcast.v1.LearningFinding` documents the fields."""

    rule: str
    what: str
    advice: str

    @property
    def sentence(self) -> str:
        """The finding as one text. It comes from a learner, so escape control characters before display."""
        return f"{self.what}; {self.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActStatus:
    """The answers to `Act`. `rollcast.v1.ActStatus` documents the fields."""

    calls: int = 0
    observations: int = 0
    forward_passes: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """The state of training. `rollcast.v1.LearnerStatus` documents the fields."""

    phase: Phase
    waiting_for: str = ""
    waiting_s: float = 0.0
    env_steps: int = 0
    seconds: float = 0.0
    env_steps_per_second: float = 0.0
    updates: int = 0
    updates_per_second: float = 0.0
    policy_version: int = 0
    policy_lag_mean: float = 0.0
    policy_lag_max: int = 0
    queue_size: int = 0
    queue_capacity: int = 0
    actors_alive: int = 0
    actors_expected: int = 0
    episodes: int = 0
    mean_return: float | None = None
    duplicate_rollouts: int = 0
    rejected_rollouts: int = 0
    run_dir: str = ""
    waiting_fraction: float = 0.0
    software_version: str = ""
    algorithm: str = ""
    stale_trajectories: int = 0
    replay: ReplayStatus | None = None
    throttled: tuple[Throttled, ...] = ()
    evaluation: EvaluationStatus | None = None
    dropped_episodes: int = 0
    findings: tuple[LearningFinding, ...] = ()
    acts: ActStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorInfo:
    """The state of one actor. `rollcast.v1.ActorInfo` documents the fields."""

    actor_id: str
    slot: int
    incarnation: int
    state: ActorState
    peer: str = ""
    n_envs: int = 0
    rollouts: int = 0
    env_steps: int = 0
    policy_version: int = 0
    idle_s: float = 0.0
    software_version: str = ""
    last_error: str = ""
    acting_state: ActingState | None = None
    applied_policy_version: int = 0
    env_steps_per_second: float = 0.0
    answer_p50_s: float = 0.0
    answer_p99_s: float = 0.0
    via: tuple[str, ...] = ()
    cpu_cores: float = 0.0
    memory_bytes: int = 0
