"""`rollcast plot`: draws the curves of several runs with their spread."""

from typing import TextIO

from rollcast.learner.runs.curves import alike, read_curve, spread_of
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.plot import PlotSettings
from rollcast.services.errors import ConfigurationError

_METRICS = ("eval/mean_return", "train/mean_return")
_FORMATS = (".png", ".svg")
_INCHES = (8.0, 5.0)


def plot(settings: PlotSettings, out: TextIO) -> int:
    """Draws the curves into the file that the settings name, and says where it is.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: A folder is no run or has no such metric, or the picture cannot be written.
    """
    if settings.out.suffix not in _FORMATS:
        raise ConfigurationError(f"--out: {str(settings.out)!r}; expected a file that ends with .png or .svg")
    groups = alike([RunDirectory(path) for path in settings.runs])
    metric = settings.metric or _common_metric([run for runs in groups.values() for run in runs])
    over_seconds = settings.over == "seconds"

    # imported here: `rollcast --help` must not wait for it
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for name, runs in groups.items():
        spread = spread_of([read_curve(run, metric, over_seconds=over_seconds) for run in runs])
        (line,) = axes.plot(spread.x, spread.median, label=f"{name} ({_runs(len(runs))})")
        if len(runs) > 1:
            axes.fill_between(spread.x, spread.low, spread.high, color=line.get_color(), alpha=0.2, linewidth=0.0)
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
            f"--out: {str(settings.out)!r} cannot be written: {error.strerror}; expected a place that can be; choose "
            "another"
        ) from error
    out.write(
        f"{settings.out}: {metric} of {', '.join(f'{name} ({_runs(len(runs))})' for name, runs in groups.items())}\n"
    )
    return 0


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
