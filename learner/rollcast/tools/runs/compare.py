"""`rollcast compare`: shows the settings in which runs differ."""

import json
from typing import Any, TextIO

from rollcast.learner.checkpoints.listing import describe_run, need_runs
from rollcast.learner.commands.printing import print_json, print_table
from rollcast.learner.runs.curves import flat_settings
from rollcast.services.status.numbers import decimal
from rollcast.tools.settings import CompareSettings

_MISSING = "-"


def compare(settings: CompareSettings, out: TextIO) -> int:
    """Prints a column for each run: the settings in which the runs differ, and the results.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: A folder has no run, there is only one, or the settings of a run cannot be read.
    """
    runs = need_runs(settings.runs, at_least=2)
    values = [_with_seed(run.read_settings()) for run in runs]
    names = sorted({name for of_run in values for name in of_run})
    different = [name for name in names if len({_text(of_run.get(name, _MISSING)) for of_run in values}) > 1]
    summaries = [describe_run(run) for run in runs]
    if settings.json_output:
        content = {
            "runs": [str(run.path) for run in runs],
            "settings": {name: [of_run.get(name) for of_run in values] for name in different},
            "state": [summary.state for summary in summaries],
            "env_steps": [summary.env_steps for summary in summaries],
            "mean_return": [summary.mean_return for summary in summaries],
            "eval_mean_return": [summary.eval_mean_return for summary in summaries],
        }
        print_json(out, content)
        return 0
    rows: list[tuple[str, ...]] = [("", *(str(run.path) for run in runs))]
    rows += [(name, *(_text(of_run.get(name, _MISSING)) for of_run in values)) for name in different]
    if not different:
        rows.append(("settings", *("all the same" for _ in runs)))
    rows.append(("state", *(summary.state for summary in summaries)))
    rows.append(("env steps", *(f"{summary.env_steps:,}" for summary in summaries)))
    rows.append(("return", *(decimal(summary.mean_return) for summary in summaries)))
    rows.append(("evaluation", *(decimal(summary.eval_mean_return) for summary in summaries)))
    print_table(out, rows)
    return 0


def _with_seed(settings: dict[str, Any]) -> dict[str, Any]:
    return {**flat_settings(settings), "seed": settings.get("seed")}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
