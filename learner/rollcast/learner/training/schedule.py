"""Holds the times at which training broadcasts, logs, saves and stops."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """The schedule of a run.

    Attributes:
        total_steps: The environment steps, those of every agent, after which training ends.
        stop_return: The mean return at which training ends; None for no such end.
        updates_per_broadcast: The updates between two policies that are cast; None if the experience source casts them.
        log_interval_s: The seconds between two records of metrics.
        checkpoint_interval_s: The seconds between two checkpoints.
        checkpoint_interval_updates: The updates between two checkpoints, in place of seconds; None counts seconds.
        keep_checkpoints: The number of last checkpoints that are kept, besides the best.
        stop_timeout_s: The seconds that a stopped run may take to save.
    """

    total_steps: int
    stop_return: float | None
    updates_per_broadcast: int | None = 1
    log_interval_s: float = 2.0
    checkpoint_interval_s: float = 300.0
    checkpoint_interval_updates: int | None = None
    keep_checkpoints: int = 3
    stop_timeout_s: float = 600.0
