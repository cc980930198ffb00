"""Writes and reads the directory of a run: settings, metrics, policies, and the paths of all other files."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rollcast.learner.disk import write_whole
from rollcast.learner.runs.lock import is_locked, lock
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyName, SavedPolicy, saved_policy_path
from rollcast.services.settings.file import encode_settings, read_settings

_HISTORY = "history"
# The jobs of a run on Slurm have their files there before it begins.
_OF_SLURM = "slurm"
_MAX_HISTORY = 64
# There while the process with the lock serves the policy of a run that has finished.
_SERVING = ".serving"


class RunDirectory:
    """The directory of a run.

        settings.yaml              the resolved settings, and their changes under `history`
        metrics.jsonl              one line a record
        tensorboard/               the same metrics for TensorBoard
        policy_last.safetensors    the newest policy; its architecture, version and return are in the file's metadata
        policy_best.safetensors    the policy with the highest mean return: see `BestPolicy`
        checkpoints/NNNNNNNN/      checkpoints, by number of updates: see `CheckpointStore`
        slurm/                     with rollcast slurm, the files of its jobs: see `SlurmFolder`
        log/                       with --durable, rollouts that no checkpoint has: see `DurableRollouts`

    Invariant: a file is complete or missing, whenever the process or the machine stops. One thread writes, any thread
    may read.

    Attributes:
        path: The directory; other attributes are the paths of the files and folders above.
    """

    def __init__(self, path: Path) -> None:
        """Stores the path without accessing it; see `create` and `open`."""
        self.path: Final = path
        self.settings_path: Final = path / "settings.yaml"
        self.metrics_path: Final = path / "metrics.jsonl"
        self.checkpoints_path: Final = path / "checkpoints"
        self.tensorboard_path: Final = path / "tensorboard"
        self.log_path: Final = path / "log"

    def log_path_of(self, rank: int) -> Path:
        """Returns the folder of a rank's write-ahead log, and creates its parent; for rank 0, `log_path`."""
        if rank == 0:
            return self.log_path
        of_rank = self.path / "ranks" / str(rank)
        of_rank.mkdir(parents=True, exist_ok=True)
        return of_rank / self.log_path.name

    @classmethod
    def create(cls, root: Path, name: str) -> "RunDirectory":
        """Makes the directory of a new run.

        Args:
            root: The folder of runs; created if missing.
            name: The name of the run, unique in that folder.

        Returns:
            The directory, with empty folders only.

        Raises:
            ConfigurationError: The directory is not empty, another process trains there, or the directory cannot be
            made.
        """
        path = root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            cls(path).check_new()
            for folder in ("tensorboard", "checkpoints"):
                (path / folder).mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The run directory {path} cannot be made: {error.strerror}; expected a place that can be written to. "
                "Choose another --run-dir."
            ) from error
        return cls(path)

    def check_new(self) -> None:
        """Checks that a new run may use this directory, which need not exist.

        Raises:
            ConfigurationError: The directory is not empty, or another process trains there.
        """
        path = self.path
        has_files = any(file.is_file() for file in path.rglob("*") if file.relative_to(path).parts[0] != _OF_SLURM)
        # After the files: a process that has just begun this run locks it before it writes any.
        if is_locked(path):
            raise _taken(path)
        if has_files:
            raise ConfigurationError(
                f"The run directory {path} is not empty; expected a new one. "
                "Choose another --run-dir, or move the directory away."
            )

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Opens the directory of an earlier run.

        Args:
            path: The directory.

        Returns:
            The directory, which has settings and a last policy.

        Raises:
            ConfigurationError: It is not a run directory; the message lists the missing files.
        """
        run_directory = cls(path)
        expected = (run_directory.settings_path, run_directory.policy_path("last"))
        missing = [file.name for file in expected if not file.is_file()]
        if missing:
            what = f"{', '.join(missing)} missing" if path.is_dir() else "it does not exist"
            raise ConfigurationError(
                f"not a run directory: {path}: {what}; expected a directory that `rollcast train` wrote. "
                "Give the path that the summary of the run printed."
            )
        return run_directory

    def discard(self) -> None:
        """Removes a new run as far as possible; its Slurm jobs keep their files and logs."""
        with suppress(OSError):
            for path in self.path.iterdir():
                if path.is_dir() and path.name != _OF_SLURM:
                    shutil.rmtree(path, ignore_errors=True)
                elif path.is_file():
                    path.unlink()
            self.path.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the run: no other process trains in it until the body, or this process, ends.

        Raises:
            ConfigurationError: Another process trains in the run.
        """
        with lock(self.path) as is_ours:
            if not is_ours:
                raise _taken(self.path)
            self._forget_serving()  # of a process that was killed
            yield

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Marks a locked run as finished and served until the body ends; a disk that refuses the mark is no error."""
        with suppress(OSError):
            (self.path / _SERVING).touch()
        try:
            yield
        finally:
            self._forget_serving()

    def is_locked(self) -> bool:
        """Returns True while a process trains in this run, or serves its policy."""
        return is_locked(self.path)

    def is_serving(self) -> bool:
        """Returns True while a process only serves the policy of this run, which has finished."""
        return (self.path / _SERVING).exists() and self.is_locked()

    def _forget_serving(self) -> None:
        with suppress(OSError):
            (self.path / _SERVING).unlink(missing_ok=True)

    def has_log(self) -> bool:
        """Returns True if the log may have rollouts."""
        return any(self.log_path.glob("*.log"))

    def policy_path(self, name: PolicyName) -> Path:
        """Returns the file of the last or the best policy, which need not exist."""
        return saved_policy_path(self.path, name)

    def write_settings(self, settings: Mapping[str, Any], *, history: Sequence[Any] = ()) -> None:
        """Writes the resolved settings: plain values, lists and mappings. Does nothing if the file already has them.

        Args:
            settings: The settings.
            history: The changes made by resumed runs, oldest first. The file keeps the last 64.

        Raises:
            ConfigurationError: `read_settings` would refuse the settings.
            OSError: The file cannot be written.
        """
        kept = {_HISTORY: list(history)[-_MAX_HISTORY:]} if history else {}
        content = encode_settings({**settings, **kept})
        # unchanged settings are not written, so that a run can be resumed on a full disk
        if not self.settings_path.is_file() or self.settings_path.read_bytes() != content:
            write_whole(self.settings_path, content)

    def read_settings(self) -> dict[str, Any]:
        """Reads the settings of the run, without their history.

        Raises:
            ConfigurationError: The run does not exist, or the file has no settings.
        """
        if not self.settings_path.is_file():
            missing = "the folder has no settings.yaml" if self.path.is_dir() else "the folder does not exist"
            raise ConfigurationError(
                f"{str(self.path)!r} is not a run: {missing}; expected a folder from rollcast train or rollcast "
                "learner; give the path that the summary of the run printed"
            )
        settings = self._read_settings_file()
        settings.pop(_HISTORY, None)
        return settings

    def read_history(self) -> list[Any]:
        """Reads the `history` from `write_settings`: the changes made by resumed runs.

        Raises:
            ConfigurationError: The file has no settings.
        """
        history = self._read_settings_file().get(_HISTORY, [])
        return history if isinstance(history, list) else []

    def _read_settings_file(self) -> dict[str, Any]:
        return read_settings(self.settings_path, expected="the settings of a run", advice="restore the file")

    def write_policy(self, name: PolicyName, policy: SavedPolicy) -> None:
        """Writes a policy, and replaces an earlier policy of that name."""
        # Imported here: commands that list runs read no policy, and it brings numpy and gymnasium.
        from rollcast.services.policies.saved import encode_saved_policy

        write_whole(self.policy_path(name), encode_saved_policy(policy))

    def read_policy(self, name: PolicyName) -> SavedPolicy:
        """Reads a policy.

        Args:
            name: `"last"` or `"best"`.

        Raises:
            ConfigurationError: The policy does not exist, or the file is not from `write_policy`.
        """
        from rollcast.services.policies.saved import read_run_policy

        return read_run_policy(self.path, name)

    def cut_metrics(self, env_steps: int) -> None:
        """Removes the records after `env_steps` environment steps, which a resumed run repeats.

        Also removes incomplete and invalid lines.
        """
        if not self.metrics_path.is_file():
            return
        content = self.metrics_path.read_bytes()
        lines = content.split(b"\n")[:-1]
        kept = b"".join(line + b"\n" for line in lines if 0 <= _env_steps_of(line) <= env_steps)
        if kept != content:
            write_whole(self.metrics_path, kept)


def _env_steps_of(record: bytes) -> float:
    """Returns the environment steps of a record; -1 if it is invalid, because a crash may leave any bytes."""
    try:
        return float(json.loads(record)["env_steps"])
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return -1.0


def _taken(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"another process trains in the run directory {path}; expected one process at a time; stop it first, or "
        "start another run with another --run-dir"
    )
