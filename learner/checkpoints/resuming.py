"""Which run is resumed, and with what settings. Imports neither torch nor grpc."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from learner.checkpoints.manifest import CheckpointInfo
from learner.checkpoints.store import CheckpointStore
from learner.run_directory import RunDirectory
from services.errors import ConfigurationError

AUTO: Final = "auto"

# Where the runs are that nobody has named a folder for.
RUNS: Final = Path("runs")

# What may be another after a resume: when to stop, who acts and where, what is written. The rest says what is learnt.
MAY_CHANGE: Final = frozenset(
    {
        "address",
        "checkpoint_interval_s",
        "collect_timeout_s",
        "device",
        "durable",
        "durable_max_bytes",
        "insecure",
        "keep_checkpoints",
        "limits",
        "log_interval_s",
        "log_level",
        "max_actors",
        "max_restarts",
        "n_actors",
        "on_actor_failure",
        "on_step_failure",
        "resume",
        "run_dir",
        "spaces_from",
        "start_method",
        "step_timeout_s",
        "stop_return",
        "stop_timeout_s",
        "summary_json",
        "tls_cert",
        "tls_client_ca",
        "tls_key",
        "tokens_file",
        "torch_threads",
        "total_steps",
        "vectorization",
        "when_finished",
    }
)


def resumed_settings(settings: BaseModel, given: BaseModel, *, runs: Path = RUNS) -> dict[str, Any]:
    """The settings of the run to resume, with what may change; or those given, where there is none to be found.

    Args:
        settings: Those given, and defaults; `resume` is a run's folder, or `auto`.
        given: Those given; what nobody has set is not among its `model_fields_set`.
        runs: Where `auto` looks.

    Returns:
        Values for the settings' class: `resume` and `run_dir` are the folder; `resume` is None for a new run.

    Raises:
        ConfigurationError: If there is no such run, another command made it, or what is given contradicts it.
    """
    values = settings.model_dump(mode="json")
    path = Path(values["resume"]) if values["resume"] != AUTO else _found(values, runs)
    if path is None:
        return {**values, "resume": None}
    saved = RunDirectory(path).read_settings()
    unknown = sorted(saved.keys() - type(settings).model_fields.keys())
    if unknown:
        raise ConfigurationError(
            f"--resume: the run {path} was made with settings that this command has not: {', '.join(unknown)}; "
            "expected one of the same command; resume it with rollcast train or rollcast learner, whichever began it"
        )
    contradictions = list(_contradictions(given, saved))
    if contradictions:
        raise ConfigurationError(
            f"--resume: the run {path} has other settings: {'; '.join(contradictions)}; expected those of the run, or "
            "none, for they are read from it; leave them out, or begin another run"
        )
    may_change = {name: values[name] for name in given.model_fields_set & MAY_CHANGE}
    return {**saved, **may_change, "run_dir": str(path), "resume": str(path)}


def _found(values: Mapping[str, Any], runs: Path) -> Path | None:
    """What `auto` means."""
    if values["run_dir"] is not None:
        path = Path(values["run_dir"])
        return path if RunDirectory(path).settings_path.is_file() else None
    candidates = [path.parent for path in runs.glob("*/settings.yaml")]
    for path in sorted(candidates, key=_written, reverse=True):
        run = RunDirectory(path)
        try:
            if _fixed(run.read_settings()) != _fixed(values):
                continue
            with run.locked():
                newest = newest_checkpoint(run)
        except (ConfigurationError, OSError):  # somebody else's, perhaps
            continue
        if newest is None:
            if run.has_log():
                return path
        elif not newest[1].has_ended or values.get("when_finished") == "serve":
            return path
    return None


def newest_checkpoint(run: RunDirectory) -> tuple[Path, CheckpointInfo] | None:
    """The newest checkpoint of a run that is whole; whoever asks has locked the run.

    Returns:
        The checkpoint; None: the run was stopped before its first.

    Raises:
        ConfigurationError: All of its checkpoints are damaged.
    """
    store = CheckpointStore(run.checkpoints_path, keep=1)
    store.tidy()
    return store.newest()


def _written(run: Path) -> float:
    return (run / "settings.yaml").stat().st_mtime


def _fixed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in MAY_CHANGE}


def _contradictions(given: BaseModel, saved: Mapping[str, Any], prefix: str = "--") -> Iterator[str]:
    """Says, an option each, what is given and what the run has."""
    values = given.model_dump(mode="json")
    for name in sorted(given.model_fields_set - MAY_CHANGE if prefix == "--" else given.model_fields_set):
        option, own = f"{prefix}{name.replace('_', '-')}", getattr(given, name)
        if isinstance(own, BaseModel):
            others = saved.get(name)
            yield from _contradictions(own, others if isinstance(others, Mapping) else {}, f"{option}.")
        elif name in saved and saved[name] != values[name]:
            yield f"{option} is {values[name]!r} and the run's is {saved[name]!r}"
