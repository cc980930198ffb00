"""Describes the runs in a folder: the progress of each, and whether it still trains."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rollcast.learner.checkpoints.manifest import read_info
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.writers.metric_names import EVAL_MEAN_RETURN, MEAN_RETURN
from rollcast.services.errors import ConfigurationError
from rollcast.services.status.numbers import counted

# The number of bytes at the end of metrics.jsonl that are searched for the newest values: some hundred records.
_TAIL_BYTES: Final = 512 * 1024

RunState = Literal["training", "serving", "finished", "stopped", "empty", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The state of a run according to its files.

    Attributes:
        path: The run's folder.
        state: training: a process trains in it; serving: training has ended, and the learner serves its policy;
            finished: training has ended; stopped: it can be resumed; empty: it ended before its first checkpoint;
            unreadable: its settings are unreadable.
        algorithm: The algorithm; empty if unknown.
        env_id: The environment; empty if unknown.
        seed: The seed; None if unknown.
        env_steps: The largest number of environment steps in its newest records.
        mean_return: The newest mean return of 100 training episodes; None before the first episode.
        eval_mean_return: The newest mean return of an evaluation; None without an evaluation.
        written: The time of its newest record, in seconds since the epoch.
    """

    path: Path
    state: RunState
    algorithm: str = ""
    env_id: str = ""
    seed: int | None = None
    env_steps: int = 0
    mean_return: float | None = None
    eval_mean_return: float | None = None
    written: float = 0.0


def find_runs(*folders: Path) -> list[RunDirectory]:
    """Returns the runs in folders and their subfolders, each once; a folder may be a run itself.

    Raises:
        ConfigurationError: A folder does not exist.
    """
    runs: dict[Path, RunDirectory] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigurationError(
                f"{str(folder)!r} is not a folder; expected a run, or a folder of runs; correct the path"
            )
        runs |= {path.parent: RunDirectory(path.parent) for path in sorted(folder.rglob("settings.yaml"))}
    return list(runs.values())


def need_runs(folders: Sequence[Path], at_least: int = 1) -> list[RunDirectory]:
    """Returns the same as `find_runs`, for commands that need runs.

    Args:
        folders: The folders of the option RUNS.
        at_least: The number of runs that the command needs.

    Raises:
        ConfigurationError: A folder does not exist or has no run, or the runs are too few.
    """
    for folder in folders:
        if not folder.is_dir() or not find_runs(folder):
            missing = "it has no settings.yaml, and no run in it" if folder.is_dir() else "the folder does not exist"
            raise ConfigurationError(
                f"{str(folder)!r} is not a run: {missing}; expected a folder from rollcast train or rollcast learner, "
                "or a folder of such runs; correct the path"
            )
    runs = find_runs(*folders)
    if len(runs) < at_least:
        raise ConfigurationError(
            f"RUNS: {counted(len(runs), 'run')} in {', '.join(map(str, folders))}; expected at least {at_least} runs; "
            "name more of them"
        )
    return runs


def describe_run(run: RunDirectory) -> RunSummary:
    """Reads the files of a run, which may be in progress. Writes and locks no file."""
    records = list(_newest_records(run.metrics_path))
    newest = records[-1] if records else {}
    try:
        settings = run.read_settings()
    except (ConfigurationError, OSError):
        return RunSummary(path=run.path, state="unreadable", written=_written(run))
    return RunSummary(
        path=run.path,
        state=state_of(run),
        algorithm=str(settings.get("algorithm", "")),
        env_id=str(settings.get("env_id", "")),
        seed=settings.get("seed"),
        env_steps=max((record["env_steps"] for record in records), default=0),
        mean_return=_newest(records, MEAN_RETURN.tag),
        eval_mean_return=_newest(records, EVAL_MEAN_RETURN.tag),
        written=float(newest.get("time", _written(run))),
    )


def state_of(run: RunDirectory) -> RunState:
    """Returns the state of a run whose settings can be read; see `RunSummary`."""
    if run.is_serving():
        return "serving"
    if run.is_locked():
        return "training"
    return saved_state_of(run)


def saved_state_of(run: RunDirectory) -> Literal["finished", "stopped", "empty"]:
    """Returns the state of a run according to its checkpoints, whether or not a process trains in it."""
    checkpoints = CheckpointStore(run.checkpoints_path, keep=1).all()
    for checkpoint in reversed(checkpoints):
        try:
            return "finished" if read_info(checkpoint).has_ended else "stopped"
        except ConfigurationError:
            continue  # damaged; a resumed run takes the one before it, too
    return "stopped" if run.has_log() else "empty"


def has_finished(state: RunState) -> bool:
    """Returns True if a run with this state has reached its end."""
    return state in ("serving", "finished")


def _newest(records: list[dict[str, Any]], tag: str) -> float | None:
    values = (record[tag] for record in reversed(records) if isinstance(record.get(tag), int | float))
    return next((float(value) for value in values), None)


def _written(run: RunDirectory) -> float:
    path = run.metrics_path if run.metrics_path.is_file() else run.settings_path
    return path.stat().st_mtime


def _newest_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records at the end of a file, newest last; skips invalid lines."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("env_steps"), int):
            yield record
