"""The checkpoints of a run: written whole or not at all, the last few and the best kept."""

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_info, verify, write_manifest
from rollcast.services.errors import ConfigurationError

logger = logging.getLogger(__name__)


class CheckpointStore:
    """A folder of checkpoints, each a directory named after its number of updates.

    Invariant: whenever the process or the machine stops, every checkpoint is there whole or not at all, but for what a
    failing disk does to it later, which its digests tell. One thread writes, any may read.

    Args:
        path: The folder.
        keep: How many of the last ones are kept, at least 1, besides the one with the highest mean return.
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        self._path = path
        self._keep = keep

    def tidy(self) -> None:
        """Puts away what a process that was killed while writing has left; whoever writes calls it first."""
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
        """The checkpoints there are, oldest first; nothing says that they are undamaged."""
        return tuple(sorted((path for path in self._path.glob("[0-9]*")), key=lambda path: int(path.name)))

    def newest(self) -> tuple[Path, CheckpointInfo] | None:
        """The newest checkpoint that is undamaged, every byte of it read; warns of those that are not.

        Returns:
            The checkpoint; None: there is none at all.

        Raises:
            ConfigurationError: If there are some, and all of them are damaged; says what is wrong with the newest.
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

    def stage(self, n_updates: int) -> Path:
        """Makes an empty folder for the files of a checkpoint; `commit` or `shutil.rmtree` ends it."""
        staged = self._path / f".{n_updates:08d}.tmp"
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
        """Makes a checkpoint of staged files, in place of one of as many updates; removes those not to be kept.

        Args:
            staged: What `stage` made; gone afterwards, whatever happens.
            info: What it is of.
            previous: A checkpoint some of whose files are linked there; None: there is none.
            digests: xxh3-128 of staged files that need not be read again.

        Returns:
            Where it is.

        Raises:
            OSError: If it cannot be written; the one before is there.
        """
        final = self._path / f"{info.n_updates:08d}"
        replaced = self._path / f".{final.name}.replaced"
        try:
            write_manifest(staged, info, previous=previous, digests=digests)
            for path in (*staged.rglob("*"), staged):
                _fsync(path)
            if final.exists():
                final.rename(replaced)
            staged.rename(final)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        _fsync(self._path)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune()
        return final

    def remove_after(self, checkpoint: Path) -> None:
        """Removes those of more updates: a run that goes on from this one has passed them over, and makes its own."""
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
    """What the best has most of; among equals, and before any return, the newest."""
    try:
        mean_return = read_info(checkpoint).mean_return
    except ConfigurationError:
        mean_return = None
    return (float("-inf") if mean_return is None else mean_return, int(checkpoint.name))


def _remove(checkpoint: Path) -> None:
    # out of sight at once: what is half removed is no checkpoint
    leftover = checkpoint.with_name(f".{checkpoint.name}.tmp")
    checkpoint.rename(leftover)
    shutil.rmtree(leftover)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
