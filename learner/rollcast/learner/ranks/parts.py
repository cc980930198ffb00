"""Makes one checkpoint from the parts that several ranks write, each in its own folder: a whole checkpoint or none."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.ranks.group import Group, read_object
from rollcast.services.limits.limits import MAX_REASON_LENGTH
from rollcast.services.limits.texts import quoted, shortened

Answer = TypeVar("Answer", int, dict[str, Any])

# As long as the end of training waits for a checkpoint.
_PART_TIMEOUT_S: Final = 600.0


def part_of(checkpoint: Path, rank: int) -> Path:
    """Returns the folder of a rank's part. Rank 0's folder is the checkpoint itself."""
    return checkpoint if rank == 0 else checkpoint / f"rank{rank}"


class FirstStore(CheckpointStore):
    """The store of rank 0: a checkpoint is committed after every rank has written its part.

    Args:
        path: See `CheckpointStore`.
        keep: See `CheckpointStore`.
        group: Connects the ranks.
    """

    def __init__(self, path: Path, *, keep: int, group: Group) -> None:
        super().__init__(path, keep=keep)
        self._group = group
        self._n_staged = 0

    def stage(self, n_updates: int) -> Path:
        """Makes a folder, and announces it to the other ranks; see `CheckpointStore.stage`."""
        self._n_staged += 1
        name = f"checkpoint{self._n_staged}/staged"
        try:
            staged = super().stage(n_updates)
        except OSError as error:
            _tell(self._group, name, error=error)
            raise
        _tell(self._group, name, n_updates=n_updates)
        return staged

    def commit(
        self,
        staged: Path,
        info: CheckpointInfo,
        *,
        previous: Path | None = None,
        digests: Mapping[Path, str] = MappingProxyType({}),
    ) -> Path:
        """Waits for the parts of all ranks, and commits; see `CheckpointStore.commit`.

        Raises:
            OSError: A part cannot be written.
            RankLostError: A part is not written in time.
        """
        every = dict(digests)
        for rank in range(1, self._group.n_ranks):
            what = f"rank {rank} to write its part of the checkpoint after {info.n_updates} updates"
            of_part = _told(self._group, f"checkpoint{self._n_staged}/part", rank, what, "digests", dict)
            every |= _digests_in(part_of(staged, rank), of_part, rank)
        path = super().commit(staged, info, previous=previous, digests=every)
        _tell(self._group, f"checkpoint{self._n_staged}/committed", n_updates=info.n_updates)
        return path

    def abandon(self, staged: Path, error: BaseException) -> None:
        """Removes a staged folder, and tells the other ranks the reason; see `CheckpointStore.abandon`."""
        _tell(self._group, f"checkpoint{self._n_staged}/committed", error=error)
        super().abandon(staged, error)


class PartStore(CheckpointStore):
    """The store of any other rank. Its checkpoints are parts of rank 0's checkpoints.

    Args:
        path: See `CheckpointStore`.
        group: Connects the ranks.
    """

    def __init__(self, path: Path, *, group: Group) -> None:
        super().__init__(path, keep=1)
        self._group = group
        self._n_staged = 0

    def tidy(self) -> None:
        """Does nothing: rank 0 tidies the folder."""

    def remove_after(self, checkpoint: Path) -> None:
        """Does nothing: rank 0 removes checkpoints that are too new."""

    def stage(self, n_updates: int) -> Path:
        """Makes the part's folder inside rank 0's folder. This rank knows that folder: the store tells no path.

        Raises:
            OSError: The folder cannot be made, or rank 0 begins another checkpoint.
        """
        self._n_staged += 1
        what = f"rank 0 to begin the checkpoint after {n_updates} updates"
        told = _told(self._group, f"checkpoint{self._n_staged}/staged", 0, what, "n_updates", int)
        if told != n_updates:
            raise OSError(
                f"rank 0 begins the checkpoint after {told} updates, and rank {self._group.rank} the one after "
                f"{n_updates}; expected the same; look for another process that uses MASTER_PORT"
            )
        staged = self.staged_path(n_updates)
        if not staged.is_dir():
            raise OSError(
                f"{staged}, which rank 0 has made, does not exist for rank {self._group.rank}; expected the run's "
                "folder on a file system that all ranks share; choose such a --run-dir"
            )
        part = part_of(staged, self._group.rank)
        part.mkdir()
        return part

    def commit(
        self,
        staged: Path,
        info: CheckpointInfo,
        *,
        previous: Path | None = None,
        digests: Mapping[Path, str] = MappingProxyType({}),
    ) -> Path:
        """Tells rank 0 that the part is written, waits for the commit, and returns the part's folder.

        Raises:
            OSError: Rank 0 could not commit.
            RankLostError: Rank 0 has not committed in time.
        """
        del previous  # rank 0 compares with its own
        known = {str(path.relative_to(staged)): digest for path, digest in digests.items()}
        _tell(self._group, f"checkpoint{self._n_staged}/part", digests=known)
        what = f"rank 0 to commit the checkpoint after {info.n_updates} updates"
        _told(self._group, f"checkpoint{self._n_staged}/committed", 0, what, "n_updates", int)
        return part_of(self.committed_path(info.n_updates), self._group.rank)

    def abandon(self, staged: Path, error: BaseException) -> None:
        """Tells rank 0 why the part is missing; rank 0 removes the folder."""
        _tell(self._group, f"checkpoint{self._n_staged}/part", error=error)
        shutil.rmtree(staged, ignore_errors=True)


def _digests_in(part: Path, told: Mapping[str, object], rank: int) -> Mapping[Path, str]:
    """Returns the digests that a rank has told of the files in its part.

    Raises:
        OSError: A file lies elsewhere.
    """
    digests = {}
    for name, digest in told.items():
        path = part / name
        if part not in path.parents or ".." in path.parts:
            raise OSError(
                f"rank {rank}: its answer has a digest of {quoted(name)}; expected files in {part.name} only; look "
                "for another process that uses MASTER_PORT"
            )
        digests[path] = str(digest)
    return digests


def _tell(group: Group, name: str, *, error: BaseException | None = None, **answer: object) -> None:
    group.tell(name, json.dumps(answer if error is None else {"error": str(error) or repr(error)}))


def _told(group: Group, name: str, rank: int, what: str, field: str, kind: type[Answer]) -> Answer:
    """Returns the field of a rank's answer.

    Raises:
        OSError: The answer is an error, or has no such field.
        RankLostError: There is no readable answer in time.
    """
    answer = read_object(group.told(name, rank, what=what, timeout_s=_PART_TIMEOUT_S), rank, what)
    if "error" in answer:
        raise OSError(f"rank {rank}: {shortened(str(answer['error']), MAX_REASON_LENGTH)}")
    if not isinstance(value := answer.get(field), kind):
        raise OSError(f"rank {rank}: its answer has no {field}")
    return value
