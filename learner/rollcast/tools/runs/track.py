"""`rollcast track`: sends the records of an existing run to an experiment tracker."""

from typing import Final, TextIO, get_args

from rollcast.learner.commands.printing import print_line
from rollcast.learner.runs.curves import read_records
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.writers.tracker import identity_path, start_or_continue
from rollcast.learner.writers.tracker_backends import ENV_STEPS, TrackerName, finite, make_tracker
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.process.installation import require_extra
from rollcast.tools.settings import TrackSettings

_TRACKERS: Final[tuple[TrackerName, ...]] = get_args(TrackerName)
_NO_METRICS: Final = ("time", ENV_STEPS)


def track(settings: TrackSettings, out: TextIO) -> int:
    """Sends the settings and every record of `metrics.jsonl`, and prints the number of records.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: The folder is not a run directory, no tracker is named, or the tracker is not installed.
        RollcastError: The tracker takes no records.
    """
    run = RunDirectory(settings.run.resolve())
    values = run.read_settings()
    named = settings.to or values.get("track")
    to = next((name for name in _TRACKERS if name == named), None)
    if to is None:
        raise ConfigurationError(
            f"--to is missing, and {str(settings.run)!r} was trained without --track; expected one of "
            f"{', '.join(_TRACKERS)}; name the tracker"
        )
    require_extra(to, f"--to {to}")
    project = settings.project or values.get("track_project", "rollcast")
    tracker = make_tracker(to, project=project, run_dir=run.path, settings=values)
    n_sent = 0
    try:
        start_or_continue(tracker, identity_path(run.path, to))
        for record in read_records(run.metrics_path):
            numbers = {tag: value for tag, value in record.items() if tag not in _NO_METRICS and _is_number(value)}
            tracker.log(int(record[ENV_STEPS]), finite(numbers))
            n_sent += 1
        tracker.finish()
    except Exception as error:  # a tracker may raise anything
        raise RollcastError(
            f"{to} takes no records ({n_sent} so far): {type(error).__name__}: {error}; expected an account "
            "and a network; log in, or write offline, and try again"
        ) from error
    print_line(out, f"{n_sent} records of {settings.run} are in {to}, project {project}")
    return 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
