"""Summarises a training run."""

import dataclasses
import json
from enum import IntEnum
from pathlib import Path
from typing import Final

from rollcast.services.settings.new_files import write_new_file
from rollcast.services.wire.same_fields import same_fields


class EndReason(IntEnum):
    """The reason for the end of training."""

    SOLVED = 1
    STEPS = 2
    PATIENCE = 3
    STOPPED = 4
    FAILED = 5

    @property
    def is_final(self) -> bool:
        """True if the run has reached its end: after a resume, the run would end at once."""
        return self in (EndReason.SOLVED, EndReason.STEPS, EndReason.PATIENCE)

    @property
    def words(self) -> str:
        """The reason, as a sentence."""
        return _WORDS[self]


_WORDS: Final = {
    EndReason.SOLVED: "the run is solved",
    EndReason.STEPS: "all steps are done",
    EndReason.PATIENCE: "no evaluation brings a better policy",
    EndReason.STOPPED: "it was stopped",
    EndReason.FAILED: "it has failed",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """The outcome of a training run, for `--summary-json`; policy lags cover the whole run."""

    env_steps: int
    seconds: float
    env_steps_per_second: float
    updates: int
    mean_return: float | None
    solved: bool
    policy_version: int
    policy_lag_mean: float
    policy_lag_max: int
    evaluations: int = 0
    eval_mean_return: float | None = None
    best_eval_mean_return: float | None = None

    def write_json(self, path: Path) -> None:
        """Writes the summary to a file; see `write_new_file`."""
        write_new_file(path, "--summary-json", json.dumps(dataclasses.asdict(self), indent=2) + "\n")


# Returns the fields of a summary that are those of a `ProgressSnapshot`.
of_progress: Final = same_fields(
    TrainingSummary,
    but=(
        *("env_steps_per_second", "solved", "policy_version"),
        *("evaluations", "eval_mean_return", "best_eval_mean_return"),
    ),
)
