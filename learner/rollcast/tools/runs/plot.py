"""`rollcast plot`: draws the curves of several runs with their spread."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.checkpoints.listing import describe_run, has_finished, need_runs, state_of
from rollcast.learner.commands.printing import print_line
from rollcast.learner.runs.curves import Curve, Spread, alike, read_curve, spread_of
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.writers.metric_names import EVAL_CI_HIGH, EVAL_CI_LOW, EVAL_MEAN_RETURN, MEAN_RETURN
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.new_files import check_new_file
from rollcast.tools.settings import PlotSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRICS = (EVAL_MEAN_RETURN.tag, MEAN_RETURN.tag)
_FORMATS = (".png", ".svg")
_INCHES = (8.0, 5.0)
# x, and the lower and the upper end of a band.
_Band: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def plot(settings: PlotSettings, out: TextIO) -> int:
    """Draws the curves into the file that the settings name, and prints its path.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: A folder has no run, a run has no such metric, or the picture cannot be written.
    """
    if settings.out.suffix not in _FORMATS:
        raise ConfigurationError(f"--out: {str(settings.out)!r}; expected a file that ends with .png or .svg")
    check_new_file(settings.out, "--out")
    runs, left_out = _drawable(settings.runs)
    groups = alike(runs)
    metric = settings.metric or _common_metric([run for runs in groups.values() for run in runs])
    over_seconds = settings.over == "seconds"

    # imported here: `rollcast --help` must not wait for it
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    notes = draw(axes, groups, metric, over_seconds=over_seconds)
    if settings.threshold is not None:
        axes.axhline(settings.threshold, color="grey", linestyle="--", linewidth=1.0)
    axes.set_xlabel("seconds" if over_seconds else "environment steps")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(settings.out, dpi=150)
    except OSError as error:
        raise ConfigurationError(
            f"--out: {str(settings.out)!r} cannot be written: {error.strerror}; expected a file in a folder that this "
            "user can write to; choose another"
        ) from error
    drawn = ", ".join(f"{name} ({_runs(len(runs))})" for name, runs in groups.items())
    for line in (f"{settings.out}: {metric} of {drawn}", *notes, *left_out):
        print_line(out, line)
    return 0


def _drawable(folders: Sequence[Path]) -> tuple[list[RunDirectory], list[str]]:
    """Finds the runs to draw. Runs without a return are left out, unless they are named or there are no others.

    Returns:
        The runs, and a note on those that are left out.
    """
    runs = need_runs(folders)
    without = [run.path for run in runs if run.path not in folders and not _has_returns(run)]
    if len(without) in (0, len(runs)):
        return runs, []
    note = f"left out, because no episode has ended or the settings are unreadable: {', '.join(map(str, without))}"
    return [run for run in runs if run.path not in without], [note]


def _has_returns(run: RunDirectory) -> bool:
    summary = describe_run(run)
    return summary.mean_return is not None or summary.eval_mean_return is not None


def draw(
    axes: "Axes", groups: Mapping[str, Sequence[RunDirectory]], metric: str, *, over_seconds: bool = False
) -> list[str]:
    """Draws a curve for each group of runs.

    A dot marks the end of a run that has reached its goal or its last step. A cross marks the end of a run that was cut
    off. After the first end in a group, the group's median is dashed. This part uses the last value of finished runs,
    and ignores runs that were cut off.

    Args:
        axes: Where to draw.
        groups: The runs of each curve, by its name.
        metric: The metric.
        over_seconds: True: over seconds; False: over environment steps.

    Returns:
        Notes on the dashed parts, one per line.

    Raises:
        ConfigurationError: A run has no such metric.
    """
    notes: list[str] = []
    for name, runs in groups.items():
        curves = [
            read_curve(run, metric, over_seconds=over_seconds, has_ended=has_finished(state_of(run))) for run in runs
        ]
        spread, band = spread_of(curves), _interval(runs, metric, over_seconds=over_seconds)
        is_own, is_dashed = spread.x <= spread.all_until, spread.x >= spread.all_until
        label = f"{name} ({_runs(len(runs))}{'' if band is None else ', 95 % confidence of the mean'})"
        (line,) = axes.plot(spread.x[is_own], spread.median[is_own], label=label)
        color = line.get_color()
        if is_dashed.sum() > 1:
            axes.plot(spread.x[is_dashed], spread.median[is_dashed], "--", color=color)
        for marker, has_ended in (("o", True), ("x", False)):
            ends = [(curve.x[-1], curve.y[-1]) for curve in curves if curve.has_ended is has_ended]
            if ends:
                axes.plot(*zip(*ends, strict=True), marker, color=color, markersize=4.0)
        if band is None and len(runs) > 1:
            band = spread.x, spread.low, spread.high
        if band is not None:
            axes.fill_between(*band, color=color, alpha=0.2, linewidth=0.0)
        notes += _notes(name, curves, spread)
    if notes:
        axes.plot([], [], "--", color="grey", label="some runs have ended (dot) or were cut off (cross)")
    return notes


def _interval(runs: Sequence[RunDirectory], metric: str, *, over_seconds: bool) -> _Band | None:
    """Returns the confidence interval of the evaluations of a single run; None without one."""
    if len(runs) > 1 or metric != EVAL_MEAN_RETURN.tag:
        return None
    try:
        low, high = (read_curve(runs[0], end.tag, over_seconds=over_seconds) for end in (EVAL_CI_LOW, EVAL_CI_HIGH))
    except ConfigurationError:
        # evaluations of one episode have none
        return None
    return low.x, low.y, high.y


def _notes(name: str, curves: Sequence[Curve], spread: Spread) -> list[str]:
    """Returns the notes on the dashed part of a curve."""
    early = [curve for curve in curves if curve.x[-1] < spread.x[-1]]
    n_ended = sum(curve.has_ended for curve in early)
    n_cut = len(early) - n_ended
    notes = []
    if n_ended:
        notes.append(
            f"{n_ended} of {len(curves)} runs of {name} {'has' if n_ended == 1 else 'have'} ended early: from then on "
            f"{'it counts with its' if n_ended == 1 else 'they count with their'} last value"
        )
    if n_cut:
        was = (
            "was stopped, has failed or still trains: it does"
            if n_cut == 1
            else ("were stopped, have failed or still train: they do")
        )
        notes.append(f"{n_cut} of {len(curves)} runs of {name} {was} not count after that")
    return notes


def _common_metric(runs: list[RunDirectory]) -> str:
    """Returns the first metric of `_METRICS` that every run has; the last if none has."""
    for metric in _METRICS[:-1]:
        try:
            for run in runs:
                read_curve(run, metric)
        except ConfigurationError:
            continue
        return metric
    return _METRICS[-1]


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"median and quartiles of {number} runs"
