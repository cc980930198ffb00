"""Defines when training broadcasts, logs, saves and stops."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSchedule:
    """The schedule of evaluations, and their consequences.

    Attributes:
        interval_s: Seconds between two evaluations; None: `interval_steps` applies.
        interval_steps: Environment steps between two evaluations; None: `interval_s` applies.
        patience: The number of consecutive evaluations without a better mean return after which training ends; None: no
            such end.
        n_opponents: The number of earlier policies that are opponents, besides the first policy; None: policies play
            without opponents.
        decides: True if training ends when the newest evaluation reaches the stop return.
    """

    interval_s: float | None
    interval_steps: int | None
    patience: int | None = None
    n_opponents: int | None = None
    decides: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """The schedule of a run.

    Attributes:
        total_steps: The environment steps, over all agents, after which training ends.
        stop_return: The mean return at which training ends; None: no such end.
        updates_per_broadcast: The updates between two published policies; None if the experience source publishes.
        log_interval_s: The seconds between two records of metrics.
        checkpoint_interval_s: The seconds between two checkpoints.
        checkpoint_interval_updates: The updates between two checkpoints, in place of seconds; None: seconds apply.
        keep_checkpoints: The number of recent checkpoints to keep, besides the best.
        stop_timeout_s: The seconds that a stopped run may take to save.
        evaluation: The schedule of evaluations; None: no evaluation.
    """

    total_steps: int
    stop_return: float | None
    updates_per_broadcast: int | None = 1
    log_interval_s: float = 2.0
    checkpoint_interval_s: float = 300.0
    checkpoint_interval_updates: int | None = None
    keep_checkpoints: int = 3
    stop_timeout_s: float = 600.0
    evaluation: EvaluationSchedule | None = None
