"""What is left of a run: its settings, its metrics, its policies, its checkpoints."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollcast.learner.disk import write_whole
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyName, SavedPolicy
from rollcast.services.policies.saved import encode_saved_policy, read_run_policy, saved_policy_path
from rollcast.services.settings.file import encode_settings, read_settings

_SETTINGS_FILE = "settings.yaml"
_HISTORY = "history"
_MAX_HISTORY = 64
_METRICS_FILE = "metrics.jsonl"
_LOCK_FILE = ".lock"


class RunDirectory:
    """A directory with what a run leaves behind.

        settings.yaml              the resolved settings, and under `history` what was changed, and when
        metrics.jsonl              one line a record
        tensorboard/               the same for TensorBoard
        policy_last.safetensors    the newest policy; its architecture, version and return are in the file's metadata
        policy_best.safetensors    the one that earned the highest mean return: see `BestPolicy`
        checkpoints/NNNNNNNN/      what training goes on from, by number of updates: see `CheckpointStore`
        log/                       with --durable, rollouts that no checkpoint has: see `DurableRollouts`

    Invariant: a file is there whole or not at all, whenever the process or the machine stops. One
    thread writes, any may read.

    Attributes:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        """Names a directory; use `create` or `open`."""
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str) -> "RunDirectory":
        """Makes the directory of a new run.

        Args:
            root: Where runs are; made if it does not exist.
            name: The run's own, unique there.

        Returns:
            The directory, with nothing in it but empty folders.

        Raises:
            ConfigurationError: If there is something of that name already, or it cannot be made.
        """
        path = root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(file.is_file() for file in path.rglob("*")):
                raise ConfigurationError(
                    f"The run directory {path} is not empty; expected a new one. "
                    "Choose another --run-dir, or move it away."
                )
            for folder in ("tensorboard", "checkpoints"):
                (path / folder).mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The run directory {path} cannot be made: {error.strerror}; expected a place that can be written to. "
                "Choose another --run-dir."
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Opens the directory of an earlier run.

        Args:
            path: The directory.

        Returns:
            The directory, with settings and a last policy in it.

        Raises:
            ConfigurationError: If it is not a run directory; the message lists what is missing.
        """
        run_directory = cls(path)
        expected = (path / _SETTINGS_FILE, run_directory.policy_path("last"))
        missing = [file.name for file in expected if not file.is_file()]
        if missing:
            what = f"{', '.join(missing)} missing" if path.is_dir() else "it does not exist"
            raise ConfigurationError(
                f"not a run directory: {path}: {what}; expected a directory that `rollcast train` wrote. "
                "Give the path that the summary of the run printed."
            )
        return run_directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps every other process from training in it, until the body, or this process, ends.

        Raises:
            ConfigurationError: If another one does.
        """
        descriptor = os.open(self.path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"another process trains in the run directory {self.path}; expected one at a time; stop it first, "
                    "or begin another run"
                ) from error
            yield
        finally:
            os.close(descriptor)

    @property
    def settings_path(self) -> Path:
        """Where the settings are."""
        return self.path / _SETTINGS_FILE

    @property
    def log_path(self) -> Path:
        """Where rollouts are that no checkpoint has."""
        return self.path / "log"

    def has_log(self) -> bool:
        """Whether there may be such rollouts."""
        return any(self.log_path.glob("*.log"))

    @property
    def metrics_path(self) -> Path:
        """Where the JSON lines go."""
        return self.path / _METRICS_FILE

    @property
    def checkpoints_path(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def tensorboard_path(self) -> Path:
        """Where TensorBoard's event files go."""
        return self.path / "tensorboard"

    def policy_path(self, name: PolicyName) -> Path:
        """Where the last or the best policy is, or will be."""
        return saved_policy_path(self.path, name)

    def write_settings(self, settings: Mapping[str, Any], *, history: Sequence[Any] = ()) -> None:
        """Writes the resolved settings: plain values, lists and mappings. Writes nothing where the file has them.

        Args:
            settings: The settings.
            history: What was changed when the run was resumed, the last change last; the last 64 are kept.

        Raises:
            ConfigurationError: `read_settings` would refuse them.
            OSError: They cannot be written.
        """
        kept = {_HISTORY: list(history)[-_MAX_HISTORY:]} if history else {}
        content = encode_settings({**settings, **kept})
        # a run that is resumed on a full disk goes on, and waits for room where it needs some
        if not self.settings_path.is_file() or self.settings_path.read_bytes() != content:
            write_whole(self.settings_path, content)

    def read_settings(self) -> dict[str, Any]:
        """Reads the settings of the run, without their history.

        Raises:
            ConfigurationError: There is no such run, or the file holds anything else.
        """
        if not self.settings_path.is_file():
            missing = "the folder has no settings.yaml" if self.path.is_dir() else "there is no such folder"
            raise ConfigurationError(
                f"{str(self.path)!r} is no run: {missing}; expected a folder that rollcast train or rollcast learner "
                "wrote; give the path that the summary of the run printed"
            )
        settings = self._read_settings_file()
        settings.pop(_HISTORY, None)
        return settings

    def read_history(self) -> list[Any]:
        """Reads what was changed when the run was resumed, as `write_settings` was given it.

        Raises:
            ConfigurationError: As of `read_settings`.
        """
        history = self._read_settings_file().get(_HISTORY, [])
        return history if isinstance(history, list) else []

    def _read_settings_file(self) -> dict[str, Any]:
        return read_settings(self.settings_path, expected="the settings of a run", advice="restore the file")

    def write_policy(self, name: PolicyName, policy: SavedPolicy) -> None:
        """Writes a policy in place of the one of that name."""
        write_whole(self.policy_path(name), encode_saved_policy(policy))

    def read_policy(self, name: PolicyName) -> SavedPolicy:
        """Reads a policy back.

        Args:
            name: `"last"` or `"best"`.

        Raises:
            ConfigurationError: If there is none of that name, or the file is not one that `write_policy` wrote.
        """
        return read_run_policy(self.path, name)

    def cut_metrics(self, env_steps: int) -> None:
        """Drops the records after so many environment steps: of what a run that is resumed goes on without.

        A line that was not written to its end, or is no record, goes, too.
        """
        if not self.metrics_path.is_file():
            return
        content = self.metrics_path.read_bytes()
        lines = content.split(b"\n")[:-1]
        kept = b"".join(line + b"\n" for line in lines if 0 <= _env_steps_of(line) <= env_steps)
        if kept != content:
            write_whole(self.metrics_path, kept)


def _env_steps_of(record: bytes) -> float:
    """When a record was written; -1: it is none. A machine that stops may leave anything where nothing was synced."""
    try:
        return float(json.loads(record)["env_steps"])
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return -1.0
