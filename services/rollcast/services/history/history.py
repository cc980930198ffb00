"""Defines the history of a run as values. `rollcast/v1/history.proto` documents the fields.

Times are in seconds since the learner began to serve.
"""

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.services.status.status import ActorInfo, LearnerStatus

# uint8 [intervals, states]: the share of each interval spent in each state, in 255ths; a row of zeros: unknown.
Shares: TypeAlias = NDArray[np.uint8]

# Trajectories with a larger lag are counted under this lag.
MAX_COUNTED_LAG: Final = 32


class LearnerActivity(enum.Enum):
    """The work of the learner's training thread."""

    WAITING = 1
    UPDATING = 2
    PUBLISHING = 3
    CHECKPOINTING = 4
    PAUSED = 5


class EventSeverity(enum.Enum):
    """The severity of an event."""

    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The properties of a run that do not change while its learner runs."""

    env_id: str = ""
    algorithm: str = ""
    run_dir: str = ""
    seed: int | None = None
    stop_return: float | None = None
    started_unix_s: float = 0.0
    software_version: str = ""
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """The numbers of one interval of training."""

    time_s: float
    interval_s: float
    env_steps: int = 0
    env_steps_per_second: float = 0.0
    updates: int = 0
    policy_version: int = 0
    mean_return: float | None = None
    episodes: int = 0
    waiting_fraction: float = 0.0
    queue_size: int = 0
    actors_alive: int = 0
    replay_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One evaluation of a policy."""

    time_s: float
    env_steps: int
    policy_version: int
    mean_return: float
    ci_low: float
    ci_high: float
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """Values of one metric, the oldest first."""

    metric: str
    time_s: tuple[float, ...]
    env_steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lane:
    """The share of time that the learner, or one actor, spent in each state, for intervals of equal length."""

    actor_id: str
    interval_s: float
    end_s: float
    shares: Shares

    def __eq__(self, other: object) -> bool:
        """Returns whether both lanes have the same contents."""
        return isinstance(other, Lane) and (
            (self.actor_id, self.interval_s, self.end_s) == (other.actor_id, other.interval_s, other.end_s)
            and np.array_equal(self.shares, other.shares)
        )

    __hash__ = None  # type: ignore[assignment]  # equal by the values of an array, which may change


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """An event in a run, with its time and severity."""

    time_s: float
    severity: EventSeverity
    who: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDelays:
    """The ages of policies and rollouts during the last minute."""

    trajectories_by_lag: tuple[int, ...] = ()
    max_policy_lag: int | None = None
    data_age_p50_s: float | None = None
    data_age_p99_s: float | None = None
    publish_lag_p50_s: float | None = None
    publish_lag_p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUpdate:
    """The changes of a history. The first update has the whole history that the learner keeps.

    `run` is None in all updates except the first. `status`, `actors` and `delays` describe the time `now_s`.
    """

    now_s: float
    run: RunFacts | None = None
    status: LearnerStatus
    actors: tuple[ActorInfo, ...] = ()
    points: tuple[HistoryPoint, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    lanes: tuple[Lane, ...] = ()
    events: tuple[HistoryEvent, ...] = ()
    delays: PolicyDelays = PolicyDelays()
    curves: tuple[MetricCurve, ...] = ()
