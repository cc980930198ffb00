"""`rollcast ls`: lists runs."""

import dataclasses
import time
from typing import TextIO

from rollcast.learner.checkpoints.listing import RunSummary, describe_run, find_runs
from rollcast.learner.commands.printing import print_json, print_line, print_table
from rollcast.services.status.numbers import decimal
from rollcast.tools.settings import LsSettings

_HEAD = ("run", "algorithm", "environment", "return", "evaluation", "env steps", "newest record", "state")


def ls(settings: LsSettings, out: TextIO) -> int:
    """Prints a line for each run, the newest first. Without runs, prints a line with the searched folders.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: A folder does not exist.
    """
    runs = find_runs(*settings.folders)
    summaries = sorted(map(describe_run, runs), key=lambda summary: summary.written, reverse=True)
    if settings.json_output:
        values = [{**dataclasses.asdict(summary), "path": str(summary.path)} for summary in summaries]
        print_json(out, values)
    elif not summaries:
        print_line(out, f"there is no run in {', '.join(map(str, settings.folders))}")
    else:
        now = time.time()
        print_table(out, [_HEAD, *(_row(summary, now) for summary in summaries)])
    return 0


def _row(summary: RunSummary, now: float) -> tuple[str, ...]:
    return (
        str(summary.path),
        summary.algorithm,
        summary.env_id,
        decimal(summary.mean_return),
        decimal(summary.eval_mean_return),
        f"{summary.env_steps:,}",
        f"{_span(now - summary.written)} ago",
        summary.state,
    )


def _span(seconds: float) -> str:
    """Returns a time span in its largest unit: `42 s`, `3 min`, `5 h`, `2 d`."""
    for unit, of_unit in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= of_unit:
            return f"{seconds / of_unit:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
