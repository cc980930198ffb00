"""Connects the ranks of a run: finds them, compares their settings, and keeps their connection."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from rollcast.learner.checkpoints.manifest import CheckpointInfo, read_info
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.devices.choice import choose_device
from rollcast.learner.ranks.assignment import RankAssignment
from rollcast.learner.ranks.group import Backend, Group, RankGroup, choose_backend
from rollcast.learner.ranks.parts import FirstStore, PartStore
from rollcast.learner.ranks.rank_info import RankInfo
from rollcast.learner.ranks.reduction import GradientReduction, RankReduction
from rollcast.learner.ranks.rounds import RankRounds, RankState, Round
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.services.errors import ConfigurationError
from rollcast.services.rendezvous import advertised_address

# Longer than any name of a host with its port, and than a socket's path.
_MAX_ADDRESS_BYTES: Final = 512
# As long as Linux's longest path, and the name of a checkpoint.
_MAX_TEXT_BYTES: Final = 4096 + 256
# The object of the wait while rank 0 creates or opens the run.
_RUN: Final = "the folder of the run from rank 0"


class Ranks:
    """The ranks of a run, from the view of one rank. `ONE_RANK` is a single learner.

    The trainer's thread calls all methods except `ask_for_checkpoint`.

    Args:
        group: Connects the ranks.
        device: The device of this rank.
        n_local_ranks: See Attributes.
        data_timeout_s: See Attributes.
        check_updates: See Attributes.
        advertised_host: The host at which actors reach this rank; empty: this machine's name.

    Attributes:
        group: See Args.
        rank: The number of this rank.
        n_ranks: W.
        is_first: True for rank 0, which keeps the run's shared files.
        assignment: Divides the actors among the ranks.
        n_local_ranks: The ranks on this machine, which share its cores.
        data_timeout_s: The seconds that a rank waits for a batch while other ranks have one.
        check_updates: The updates between two comparisons of the policies of all ranks.
        end: The number of the reason for the end of training, according to rank 0; 0: training continues.
    """

    def __init__(
        self,
        group: Group,
        device: torch.device,
        *,
        n_local_ranks: int,
        data_timeout_s: float,
        check_updates: int,
        advertised_host: str,
    ) -> None:
        self.group = group
        self.rank, self.n_ranks, self.is_first = group.rank, group.n_ranks, group.rank == 0
        self.n_local_ranks = n_local_ranks
        self.data_timeout_s = data_timeout_s
        self.check_updates = check_updates
        self.end = 0
        self._device = device
        self._advertised_host = advertised_host
        self._assignment = RankAssignment(group)
        self.assignment: ActorAssignment = self._assignment
        self._rounds = RankRounds(group)
        self._wants_checkpoint = False

    def choose_device(self, name: str) -> torch.device:
        """Returns the device of this rank, which was chosen before the ranks were connected.

        Raises:
            ConfigurationError: The name is `cuda`, and torch finds no CUDA device.
        """
        del name
        return self._device

    def join(self, join: Callable[[GradientReduction], None]) -> None:
        """Makes an algorithm learn together with the algorithms of the other ranks.

        Args:
            join: The algorithm's `join_ranks`.

        Raises:
            ConfigurationError: The algorithm does not support this.
        """
        join(RankReduction(self.group))

    def meet(self, what: str) -> None:
        """Waits until every rank has made this call.

        Args:
            what: The purpose of the wait, for the error if a rank is missing.

        Raises:
            RankLostError: Another rank is gone, or has not arrived in time.
        """
        self.group.sum(torch.zeros(1), what)

    def broadcast_text(self, text: str, what: str) -> str:
        """Returns the text of rank 0; the texts of other ranks are ignored. Waits until every rank has made this call.

        Args:
            text: The text, without NUL at its end; at most a path and a name long.
            what: The text's purpose, for the error if a rank is missing.

        Raises:
            RankLostError: Another rank is gone, or has not arrived in time.
        """
        return self._gather_texts(text, _MAX_TEXT_BYTES, what)[0]

    def _gather_texts(self, text: str, max_bytes: int, what: str) -> Sequence[str]:
        """Returns the texts of all ranks, each cut to `max_bytes`.

        They go through the ranks' own connections, because any process that reaches the store can write to that store.
        """
        own = torch.zeros(max_bytes, dtype=torch.uint8)
        content = os.fsencode(text)[:max_bytes]
        own[: len(content)] = torch.tensor(list(content), dtype=torch.uint8)
        return [os.fsdecode(bytes(row).rstrip(b"\0")) for row in self.group.gather(own, what).tolist()]

    def newest_version(self, version: int) -> int:
        """Returns the newest policy version of all ranks, because a killed rank may have published more than another.

        Args:
            version: The newest version that this rank knows.

        Raises:
            RankLostError: Another rank is gone, or has not answered in time.
        """
        return int(self.group.gather(torch.tensor([version]), "the newest policy version of all ranks").max())

    def tell_run(self, run: RunDirectory, checkpoint: tuple[Path, CheckpointInfo] | None) -> None:
        """Tells the other ranks the folder of the run, and the checkpoint from which it continues. For rank 0."""
        name = "" if checkpoint is None else checkpoint[0].name
        self.broadcast_text(f"{run.path.resolve()}\0{name}", _RUN)

    def told_run(self) -> tuple[RunDirectory, tuple[Path, CheckpointInfo] | None]:
        """Waits for the values of `tell_run`, and returns them. For all other ranks.

        Raises:
            ConfigurationError: The folder does not exist: the ranks share no file system.
            RankLostError: Rank 0 is gone, or has not answered in time.
        """
        path, _, name = self.broadcast_text("", _RUN).partition("\0")
        run = RunDirectory(Path(path))
        if not run.path.is_dir():
            raise ConfigurationError(
                f"rank 0 keeps its run in {path!r}, which does not exist for rank {self.rank}; expected a "
                "folder on a file system that all ranks share, where each rank writes its part; choose such a "
                "--run-dir"
            )
        checkpoint = run.checkpoints_path / name
        return run, (checkpoint, read_info(checkpoint)) if name else None

    def serve_at(self, address: str) -> None:
        """Tells the other ranks this rank's address for actors, and waits until all ranks have done so.

        Raises:
            RankLostError: Another rank is gone, or has not answered in time.
        """
        own = advertised_address(address, self._advertised_host)
        self._assignment.serve_at(self._gather_texts(own, _MAX_ADDRESS_BYTES, "the addresses of all ranks"))

    def store(self, path: Path, *, keep: int) -> CheckpointStore:
        """Returns the store of checkpoints, or of this rank's parts; see `CheckpointStore`."""
        return FirstStore(path, keep=keep, group=self.group) if self.is_first else PartStore(path, group=self.group)

    def begins_checkpoint(self, *, is_writing: bool) -> bool:
        """Asks all ranks for a due checkpoint. Returns False: the checkpoint begins once all ranks agree.

        Args:
            is_writing: True while a checkpoint is being written; then it sends no request.
        """
        if not is_writing:
            self.ask_for_checkpoint()
        return False

    def ask_for_checkpoint(self) -> None:
        """Asks all ranks for a checkpoint after their next update. Thread-safe."""
        self._wants_checkpoint = True

    def goes_on(self, *, is_done: bool, end: int) -> bool:
        """Returns whether training continues. A rank continues until all ranks agree on the end in `agree`.

        Args:
            is_done: True if this rank has a reason to stop.
            end: The number of the reason if training has reached its end; 0: not yet.
        """
        del is_done
        self.end = end if self.is_first else 0
        return True

    def agree(self, state: RankState) -> Round:
        """Agrees with the other ranks on the next step; see `RankRounds.agree`.

        Args:
            state: The state of this rank, without `ends` and `checkpoint`.
        """
        agreed = self._rounds.agree(dataclasses.replace(state, ends=self.end, checkpoint=self._wants_checkpoint))
        self._assignment.note_loads(agreed.n_actors)
        self.end = agreed.ends
        if agreed.checkpoint:
            self._wants_checkpoint = False
        return agreed


class _OneRank(Ranks):
    """A single learner: it waits for no other rank, and agrees with itself."""

    def __init__(self) -> None:
        super().__init__(
            Group(),
            torch.device("cpu"),
            n_local_ranks=1,
            data_timeout_s=math.inf,
            check_updates=1,
            advertised_host="",
        )
        self.assignment = ONE_LEARNER

    def choose_device(self, name: str) -> torch.device:
        """Returns the device for a name: `auto`, `cpu` or `cuda`."""
        return choose_device(name)

    def join(self, join: Callable[[GradientReduction], None]) -> None:
        """Does not change the algorithm, because custom algorithms may not support several ranks."""

    def begins_checkpoint(self, *, is_writing: bool) -> bool:
        """Returns True: no other rank writes a part."""
        del is_writing
        return True

    def goes_on(self, *, is_done: bool, end: int) -> bool:
        """Returns True if there is no reason to stop."""
        del end
        return not is_done


# The default of every run.
ONE_RANK: Final[Ranks] = _OneRank()


@contextlib.contextmanager
def joined_ranks(
    place: RankInfo,
    settings: Mapping[str, object],
    *,
    device: str,
    backend: Backend,
    timeout_s: float,
    data_timeout_s: float,
    check_updates: int,
    advertised_host: str,
) -> Iterator[Ranks]:
    """Connects to the other ranks, and disconnects at the end.

    Args:
        place: The place of this process.
        settings: The settings that must be equal at all ranks.
        device: The name of the learner's device; with several GPUs, each rank of a machine has its own.
        backend: See `choose_backend`.
        timeout_s: See `RankGroup`.
        data_timeout_s: See `Ranks`.
        check_updates: See `Ranks`.
        advertised_host: See `Ranks`.

    Raises:
        ConfigurationError: The device or the backend cannot be used here.
        MismatchError: Another rank has other settings, or another version.
        RankLostError: Not all ranks have joined in time.
    """
    own = _device_of_rank(device, place)
    chosen = choose_backend(backend, own)
    with RankGroup(place, timeout_s=timeout_s) as group:
        group.compare(settings)
        group.begin(chosen, own)
        yield Ranks(
            group,
            own,
            n_local_ranks=place.n_local_ranks,
            data_timeout_s=data_timeout_s,
            check_updates=check_updates,
            advertised_host=advertised_host,
        )


def _device_of_rank(name: str, place: RankInfo) -> torch.device:
    """Returns the device of a rank; with several GPUs, each rank of a machine has its own.

    Raises:
        ConfigurationError: There are fewer CUDA devices than ranks, or none.
    """
    device = choose_device(name)
    if device.type == "cpu":
        return device
    n_devices = torch.cuda.device_count()
    if place.local_rank >= n_devices:
        raise ConfigurationError(
            f"--device: {name!r} for the local rank {place.local_rank} of a machine with {n_devices} CUDA devices; "
            f"expected one for each rank; start at most {n_devices} with --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device
