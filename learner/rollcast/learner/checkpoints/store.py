"""Keeps the checkpoints of a run: writes each completely or not at all, and keeps the last few and the best."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_info, verify, write_manifest
from rollcast.learner.disk import sync
from rollcast.services.errors import ConfigurationError

logger = logging.getLogger(__name__)


class CheckpointStore:
    """A folder of checkpoints, each a directory named after its number of updates.

    Invariant: whenever the process or the machine stops, every checkpoint is complete or missing. Digests reveal later
    damage by a failing disk. One thread writes, any thread may read.

    Args:
        path: The folder.
        keep: The number of newest checkpoints to keep, at least 1, besides the one with the highest mean return.
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        self._path = path
        self._keep = keep

    def tidy(self) -> None:
        """Removes or completes files of a process that was killed during a write. Call it before writing."""
        self._path.mkdir(parents=True, exist_ok=True)
        for leftover in self._path.glob(".*.tmp"):
            shutil.rmtree(leftover)
        for replaced in self._path.glob(".*.replaced"):
            final = self._path / replaced.name.removeprefix(".").removesuffix(".replaced")
            if final.exists():
                shutil.rmtree(replaced)
            else:  # killed between the two renames
                replaced.rename(final)

    def all(self) -> tuple[Path, ...]:
        """Returns the checkpoints, oldest first, without checking them for damage."""
        return tuple(sorted((path for path in self._path.glob("[0-9]*")), key=lambda path: int(path.name)))

    def newest(self) -> tuple[Path, CheckpointInfo] | None:
        """Returns the newest undamaged checkpoint after reading every byte, and warns of damaged checkpoints.

        Returns:
            The checkpoint; None if there are no checkpoints.

        Raises:
            ConfigurationError: All checkpoints are damaged; the message describes the damage of the newest checkpoint.
        """
        problems: list[str] = []
        for path in reversed(self.all()):
            try:
                return path, verify(path)
            except ConfigurationError as error:
                logger.warning("%s", error)
                problems.append(str(error))
        if not problems:
            return None
        raise ConfigurationError(
            f"none of the {len(problems)} checkpoints in {self._path} can be loaded: {problems[0]}; begin another run"
        )

    def staged_path(self, n_updates: int) -> Path:
        """Returns the folder that `stage` makes for a checkpoint."""
        return self._path / f".{n_updates:08d}.tmp"

    def committed_path(self, n_updates: int) -> Path:
        """Returns the folder of a checkpoint that `commit` has committed."""
        return self._path / f"{n_updates:08d}"

    def stage(self, n_updates: int) -> Path:
        """Makes an empty folder for the files of a checkpoint; end it with `commit` or `abandon`."""
        staged = self.staged_path(n_updates)
        _clear(staged)
        staged.mkdir()
        return staged

    def commit(
        self,
        staged: Path,
        info: CheckpointInfo,
        *,
        previous: Path | None = None,
        digests: Mapping[Path, str] = MappingProxyType({}),
    ) -> Path:
        """Commits staged files as a checkpoint, in place of one of the same update; removes superfluous checkpoints.

        Args:
            staged: The folder from `stage`; it is gone afterwards in any case.
            info: Describes the checkpoint.
            previous: A checkpoint whose files some staged files link to; None: none.
            digests: Known xxh3-128 digests of staged files.

        Returns:
            The directory of the checkpoint.

        Raises:
            OSError: The checkpoint cannot be written; the previous one is unchanged.
        """
        final = self.committed_path(info.n_updates)
        replaced = self._path / f".{final.name}.replaced"
        try:
            write_manifest(staged, info, previous=previous, digests=digests)
            for path in (*staged.rglob("*"), staged):
                sync(path)
            if final.exists():
                _clear(replaced)
                final.rename(replaced)
            staged.rename(final)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        sync(self._path)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune()
        return final

    def abandon(self, staged: Path, error: BaseException) -> None:
        """Removes a folder from `stage` that could not be filled.

        Args:
            staged: The folder.
            error: The reason.
        """
        del error
        shutil.rmtree(staged, ignore_errors=True)

    def remove_after(self, checkpoint: Path) -> None:
        """Removes checkpoints with more updates than this one, because a resumed run repeats those updates."""
        for path in self.all():
            if int(path.name) > int(checkpoint.name):
                _remove(path)

    def _prune(self) -> None:
        every = self.all()
        best = max(every, key=_mean_return)
        for path in every[: -self._keep]:
            if path != best:
                _remove(path)


def _mean_return(checkpoint: Path) -> tuple[float, int]:
    """Returns the sort key of the best checkpoint: its mean return, then its number of updates."""
    try:
        mean_return = read_info(checkpoint).mean_return
    except ConfigurationError:
        mean_return = None
    return (float("-inf") if mean_return is None else mean_return, int(checkpoint.name))


def _remove(checkpoint: Path) -> None:
    # renamed first, because a half removed folder is no checkpoint
    leftover = checkpoint.with_name(f".{checkpoint.name}.tmp")
    _clear(leftover)
    checkpoint.rename(leftover)
    shutil.rmtree(leftover)


def _clear(path: Path) -> None:
    """Removes a folder whose earlier removal failed, for example for lack of a free descriptor."""
    if path.exists():
        shutil.rmtree(path)
