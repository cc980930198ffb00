"""The experiment trackers for a run: Weights & Biases, Trackio, MLflow. Each tracker is an extra."""

import math
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

TrackerName = Literal["wandb", "trackio", "mlflow"]
ENV_STEPS: Final = "env_steps"
# MLflow takes no other characters in the name of a metric or a parameter.
_NOT_MLFLOW: Final = re.compile(r"[^\w\-. /]")


class Tracker(Protocol):
    """A tracker's run. One thread calls it; any call may raise any exception, and may take long."""

    def new_identity(self) -> str | None:
        """Returns an identity for a new run; None: `start` returns the tracker's identity.

        It is saved before `start`, so that the next process finds the run even if this process is killed in `start`.
        """

    def start(self, identity: str | None) -> str:
        """Starts or continues a run.

        Args:
            identity: The result of `new_identity` or of an earlier `start`; None: a new run.

        Returns:
            The identity with which a later process continues the run.
        """

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes a record of finite values."""

    def finish(self) -> None:
        """Writes remaining records, and ends the run."""


def make_tracker(name: TrackerName, *, project: str, run_dir: Path, settings: Mapping[str, Any]) -> Tracker:
    """Makes a tracker without starting it. Imports no tracker yet.

    Args:
        name: The tracker.
        project: The project, or experiment, in which the run is listed.
        run_dir: The run's folder, for offline files; its name is the run's name.
        settings: The resolved settings of the run.
    """
    backends: Mapping[TrackerName, Callable[[str, Path, Mapping[str, Any]], Tracker]] = {
        "wandb": _Wandb,
        "trackio": _Trackio,
        "mlflow": _Mlflow,
    }
    return backends[name](project, run_dir, settings)


class _Wandb:
    """Weights & Biases. `WANDB_MODE=offline` writes to the run's folder, for `wandb sync`."""

    def __init__(self, project: str, run_dir: Path, settings: Mapping[str, Any]) -> None:
        self._project, self._run_dir, self._settings = project, run_dir, settings
        self._run: Any = None

    def new_identity(self) -> str:
        return secrets.token_hex(8)

    def start(self, identity: str | None) -> str:
        import wandb

        self._run = wandb.init(
            project=self._project,
            name=self._run_dir.name,
            id=identity,
            resume="allow",
            dir=str(self._run_dir),
            config=dict(self._settings),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # evaluations come after later records: the axis is a metric, since wandb's own steps must rise
        self._run.define_metric(ENV_STEPS)
        self._run.define_metric("*", step_metric=ENV_STEPS)
        return str(self._run.id)

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        self._run.log({ENV_STEPS: env_steps, **metrics})

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()


class _Trackio:
    """Trackio: on this machine, or in a Space of Hugging Face that `TRACKIO_SPACE_ID` names."""

    def __init__(self, project: str, run_dir: Path, settings: Mapping[str, Any]) -> None:
        self._project, self._name, self._settings = project, run_dir.name, settings
        self._run: Any = None

    def new_identity(self) -> None:
        return None

    def start(self, identity: str | None) -> str:
        import trackio

        name = identity or self._name
        self._run = trackio.init(
            project=self._project,
            name=name,
            config=dict(self._settings),
            resume="never" if identity is None else "allow",
            embed=False,
        )
        return name

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=env_steps)

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()


class _Mlflow:
    """MLflow, at the server that `MLFLOW_TRACKING_URI` names."""

    def __init__(self, project: str, run_dir: Path, settings: Mapping[str, Any]) -> None:
        self._project, self._name, self._settings = project, run_dir.name, settings
        self._client: Any = None
        self._run_id = ""

    def new_identity(self) -> None:
        return None

    def start(self, identity: str | None) -> str:
        import mlflow

        self._client = mlflow.MlflowClient()
        if identity is None:
            experiment = self._client.get_experiment_by_name(self._project)
            experiment_id = (
                self._client.create_experiment(self._project) if experiment is None else experiment.experiment_id
            )
            self._run_id = self._client.create_run(experiment_id, run_name=self._name).info.run_id
            for name, value in _flat(self._settings).items():
                self._client.log_param(self._run_id, _for_mlflow(name), str(value)[:500])
        else:
            self._run_id = identity
            self._client.set_terminated(self._run_id, "RUNNING")
        return self._run_id

    def log(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        import time

        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        values = [Metric(_for_mlflow(name), value, now_ms, env_steps) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=values)

    def finish(self) -> None:
        if self._client is not None and self._run_id:
            self._client.set_terminated(self._run_id)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the finite values, which a tracker can draw."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _for_mlflow(name: str) -> str:
    return _NOT_MLFLOW.sub("_", name)
