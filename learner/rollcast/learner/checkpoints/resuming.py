"""Finds the run to resume, and merges its settings with the given settings. Imports neither torch nor grpc."""

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.runs.lock import lock
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.resume_rules import ACTING, FREE, ResumeRule, resume_rule, why_not

AUTO: Final = "auto"

# The folder of runs that were started without a --run-dir.
RUNS: Final = Path("runs")
# The ranks of a run search one after the other, and each reads the newest checkpoint whole: gigabytes with a buffer.
_SEARCH_S: Final = 600.0

Settings = TypeVar("Settings", bound=BaseModel)


def resumed_settings(
    settings: Settings, given: BaseModel, *, for_sizes: Callable[[Settings], Settings], runs: Path = RUNS
) -> dict[str, Any]:
    """Returns the settings of the run to resume, with the given changes; the given settings if `auto` finds no run.

    Args:
        settings: The given settings and defaults; `resume` is a run's folder, or `auto`.
        given: The given settings; `model_fields_set` names them.
        for_sizes: Sets the defaults that follow the numbers of actors and environments.
        runs: The folder in which `auto` looks for runs.

    Returns:
        Values for the settings' class: `resume` and `run_dir` are the folder; `resume` is None for a new run.

    Raises:
        ConfigurationError: The run does not exist, another command made it, or it cannot continue with the given
            settings.
    """
    values = settings.model_dump(mode="json")
    path = Path(values["resume"]) if values["resume"] != AUTO else _found(settings, for_sizes, runs)
    if path is None:
        return {**values, "resume": None}
    saved = RunDirectory(path).read_settings()
    unknown = sorted(saved.keys() - type(settings).model_fields.keys())
    if unknown:
        raise ConfigurationError(
            f"the run {path} has settings that this command does not know: {', '.join(unknown)}; "
            "expected a run of the same command; resume it with the command that started it, rollcast train or "
            "rollcast learner"
        )
    refused = list(_refused(given, saved))
    if refused:
        raise ConfigurationError(
            f"the run {path} cannot continue with other settings: {'; '.join(refused)}; expected the run's "
            f"settings; leave these options out, or start another run from its policy with --initial-policy {path}"
        )
    return {**_merged(saved, given), "run_dir": str(path), "resume": str(path)}


def settings_changes(settings: BaseModel, before: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compares settings with the earlier settings of a run.

    Args:
        settings: The settings from now on.
        before: The result of `RunDirectory.read_settings`; missing settings count as unchanged.

    Returns:
        The old and the new value of each changed setting, by its name: `"dqn.learning_rate"`.
    """
    return {
        ".".join(path): (_at(before, path), value)
        for path, value, _ in _leaves(settings)
        if path[0] not in ("resume", "run_dir") and _at(before, path, value) != value
    }


def changes_bits(settings: BaseModel, names: Iterable[str]) -> bool:
    """Returns True if a change of these settings changes the results of a deterministic run.

    Args:
        settings: The settings.
        names: Names of settings, as in `settings_changes`.
    """
    rules = {".".join(path): rule for path, _, rule in _leaves(settings)}
    return any(rules[name] != FREE for name in names)


def _found(settings: Settings, for_sizes: Callable[[Settings], Settings], runs: Path) -> Path | None:
    """Finds the run for `auto`: the run in `run_dir`, or the newest unfinished run with the same settings."""
    values = settings.model_dump(mode="json")
    if values["run_dir"] is not None:
        path = Path(values["run_dir"])
        return path if RunDirectory(path).settings_path.is_file() else None
    with _alone_in(runs):
        return _newest(settings, for_sizes, runs)


def _newest(settings: Settings, for_sizes: Callable[[Settings], Settings], runs: Path) -> Path | None:
    candidates = [path.parent for path in runs.glob("*/settings.yaml")]
    for path in sorted(candidates, key=_written, reverse=True):
        run = RunDirectory(path)
        try:
            if not _is_same_run(settings, run.read_settings(), for_sizes):
                continue
            with run.locked():
                newest = newest_checkpoint(run)
        except (ConfigurationError, OSError):  # perhaps of another user, or another process trains in it
            continue
        if newest is None:
            if run.has_log():
                return path
        elif not newest[1].has_ended or getattr(settings, "when_finished", None) == "serve":
            return path
    return None


@contextlib.contextmanager
def _alone_in(runs: Path) -> Iterator[None]:
    """Waits for other searches in the folder, because each locks runs for a moment and all ranks search at once.

    Raises:
        ConfigurationError: Another search has not ended in time.
    """
    with contextlib.ExitStack() as stack:
        # A missing folder has no runs. Neither, usually, has one that this user cannot write to.
        with contextlib.suppress(OSError):
            if not stack.enter_context(lock(runs, wait_s=_SEARCH_S)):
                raise ConfigurationError(
                    f"--resume auto: another process has been looking for a run in {runs} for {_SEARCH_S:.0f} s; "
                    "expected the search to end by now; end that process if it hangs, or name the run with --run-dir"
                )
        yield


def newest_checkpoint(run: RunDirectory) -> tuple[Path, CheckpointInfo] | None:
    """Returns the newest undamaged checkpoint of a run. The caller holds the run's lock.

    Returns:
        The checkpoint; None if the run was stopped before its first checkpoint.

    Raises:
        ConfigurationError: All of its checkpoints are damaged.
    """
    store = CheckpointStore(run.checkpoints_path, keep=1)
    store.tidy()
    return store.newest()


def _written(run: Path) -> float:
    return (run / "settings.yaml").stat().st_mtime


def compared_settings(settings: BaseModel) -> dict[str, Any]:
    """Returns the settings that must be equal at all ranks of a run, by option, as JSON values.

    A resumed run may not change these settings freely, because they determine what the run learns.
    """
    return {
        "--" + ".".join(path).replace("_", "-"): value
        for path, value, rule in _leaves(settings)
        if rule is not FREE or path[0] == "ranks"
    }


def _is_same_run(settings: Settings, saved: Mapping[str, Any], for_sizes: Callable[[Settings], Settings]) -> bool:
    """Returns True if a run has the settings' identity, with the defaults of older versions or of its own sizes."""
    acting = {path[0] for path, _, rule in _leaves(settings) if rule is ACTING}
    as_saved = settings.model_copy(update={name: saved[name] for name in acting & saved.keys()})
    identity = _identity(settings, saved)
    return any(_identity(each, each.model_dump(mode="json")) == identity for each in (settings, for_sizes(as_saved)))


def _identity(settings: BaseModel, values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Selects the values that identify a run: those that determine what it learns, and how."""
    return {path: _at(values, path) for path, _, rule in _leaves(settings) if rule not in (FREE, ACTING)}


def _refused(given: BaseModel, saved: Mapping[str, Any]) -> Iterator[str]:
    """Yields one text for each given option that must not change: its value, the run's value, and the reason."""
    for path, value, rule in _leaves(given, only_set=True):
        reason, own = why_not(rule), _at(saved, path, value)
        if reason and own != value:
            option = "--" + ".".join(path).replace("_", "-")
            yield f"{option} is {value!r} and the run's is {own!r}, which stays because {reason}"


def _merged(saved: Mapping[str, Any], given: BaseModel) -> dict[str, Any]:
    """Replaces settings of the run by the given ones."""
    merged = copy.deepcopy(dict(saved))
    for path, value, _ in _leaves(given, only_set=True):
        inner = merged
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return merged


def _leaves(settings: BaseModel, *, only_set: bool = False) -> Iterator[tuple[tuple[str, ...], Any, ResumeRule]]:
    """Yields every setting that is not a group: its path, its JSON value, and its resume rule."""
    values = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        if only_set and name not in settings.model_fields_set:
            continue
        own = getattr(settings, name)
        if isinstance(own, BaseModel):
            for path, value, rule in _leaves(own, only_set=only_set):
                yield (name, *path), value, rule
        else:
            rule_of = resume_rule(field)
            assert rule_of is not None, (
                f"{name} has no resume rule; give its field one of rollcast.services.settings.resume_rules"
            )
            yield (name,), values[name], rule_of


def _at(values: Mapping[str, Any], path: tuple[str, ...], otherwise: Any = None) -> Any:  # noqa: ANN401 - any setting
    """Returns the value at a path; `otherwise` if it is missing."""
    found: Any = values
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return otherwise
        found = found[name]
    return found
