"""Brings the ranks of a run together: finds them, compares their settings, and keeps what connects them."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from rollcast.learner.ranks.group import Backend, RankGroup, choose_backend
from rollcast.learner.ranks.homes import RankHomes
from rollcast.learner.ranks.place import RankPlace
from rollcast.learner.ranks.reduction import RankReduction
from rollcast.learner.ranks.rounds import RankRounds
from rollcast.services.address import parse_address
from rollcast.services.errors import ConfigurationError

# Longer than any name of a host with its port, and than a socket's path.
_MAX_ADDRESS_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRanks:
    """The ranks of a run, as one of them has them.

    Attributes:
        group: Connects them.
        rounds: Lets them agree before each update.
        homes: Divides the actors among them.
        reduction: Averages gradients over them.
        data_timeout_s: The seconds that a rank waits for a batch while others have theirs.
        check_updates: The updates between two comparisons of their policies.
        place: The place of this process among them.
        device: The learner's device.
    """

    group: RankGroup
    rounds: RankRounds
    homes: RankHomes
    reduction: RankReduction
    data_timeout_s: float
    check_updates: int
    place: RankPlace
    device: torch.device

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.group.rank

    def meet(self, what: str) -> None:
        """Waits until every rank has come here.

        Args:
            what: Names the place, for the error of a rank that waits in vain.

        Raises:
            RankLostError: Another rank is gone, or has not come in time.
        """
        self.group.sum(torch.zeros(1, device=self.device), what)

    def serve_at(self, address: str) -> None:
        """Tells the other ranks where actors reach this one, and waits until all ranks have said so.

        It goes through the ranks' own connections: what stands in the store, anybody may write who reaches it.

        Raises:
            RankLostError: Another rank is gone, or has not come in time.
        """
        own = torch.zeros(_MAX_ADDRESS_BYTES, dtype=torch.uint8, device=self.device)
        text = address.encode()[:_MAX_ADDRESS_BYTES]
        own[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        rows = self.group.gather(own, "the addresses of all ranks").tolist()
        self.homes.serve_at([bytes(row).rstrip(b"\0").decode() for row in rows])


@contextlib.contextmanager
def joined_ranks(
    place: RankPlace,
    settings: Mapping[str, object],
    *,
    device: torch.device,
    backend: Backend,
    timeout_s: float,
    data_timeout_s: float,
    check_updates: int,
) -> Iterator[RunRanks]:
    """Finds the other ranks, and leaves them at the end.

    Args:
        place: The place of this process.
        settings: The settings that must be the same everywhere.
        device: The learner's device.
        backend: See `choose_backend`.
        timeout_s: See `RankGroup`.
        data_timeout_s: See `RunRanks`.
        check_updates: Likewise.

    Raises:
        ConfigurationError: The backend cannot be used here.
        MismatchError: Another rank has other settings, or another version.
        RankLostError: Not all ranks have come in time.
    """
    chosen = choose_backend(backend, device)
    with RankGroup(place, timeout_s=timeout_s) as group:
        group.compare(settings)
        group.begin(chosen)
        yield RunRanks(
            group=group,
            rounds=RankRounds(group),
            homes=RankHomes(group),
            reduction=RankReduction(group),
            data_timeout_s=data_timeout_s,
            check_updates=check_updates,
            place=place,
            device=device,
        )


def rank_address(address: str, rank: int) -> str:
    """Returns where a rank listens: the port of rank 0 plus its number, or a socket beside that of rank 0.

    Raises:
        ConfigurationError: There is no such port.
    """
    if rank == 0:
        return address
    where = parse_address(address)
    if where.path is not None:
        return f"unix:{where.path}.{rank}"
    if where.port == 0:
        return address
    if where.port + rank > 65535:
        raise ConfigurationError(
            f"--address: {address!r} with rank {rank}, whose port would be {where.port + rank}; expected a port from "
            "which one for each rank follows; choose a lower one, or port 0"
        )
    host, _, _ = address.rpartition(":")
    return f"{host}:{where.port + rank}"
