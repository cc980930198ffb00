"""When training does what."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """When to do what.

    Attributes:
        total_steps: Environment steps, those of every agent, after which training ends.
        stop_return: Mean return at which training ends; None: at none.
        updates_per_broadcast: Updates between two policies that are cast; None: the experience source casts them.
        log_interval_s: Seconds between two records of metrics.
        checkpoint_interval_s: Seconds between two checkpoints.
        checkpoint_interval_updates: Updates between two checkpoints, instead; None: it is the seconds that count.
        keep_checkpoints: How many of the last checkpoints are kept, besides the best.
        stop_timeout_s: Seconds that the last checkpoint of a run that is stopped may take.
    """

    total_steps: int
    stop_return: float | None
    updates_per_broadcast: int | None = 1
    log_interval_s: float = 2.0
    checkpoint_interval_s: float = 300.0
    checkpoint_interval_updates: int | None = None
    keep_checkpoints: int = 3
    stop_timeout_s: float = 600.0
