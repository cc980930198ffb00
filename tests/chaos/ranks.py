"""Oracle of the ranks of one run: each learns from rollouts of its own, and all have one state and one policy."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.ledger import Entries
from tests.chaos.lineage import Lineage


@dataclass
class Session:
    """The entries of one rank from the moment at which it found the others.

    Attributes:
        n_updates: The updates of the checkpoint from which it went on; None: of none.
        cast: By version, the digest of the policy that it sent.
    """

    n_updates: int | None = None
    cast: dict[int, str] = field(default_factory=dict)


def read_sessions(record: Path) -> dict[str, Session]:
    """Reads what a rank has written down; see `tests.chaos.learning`."""
    sessions: dict[str, Session] = {}
    session = Session()
    # a line of a process that was killed is whole or not there
    for line in record.read_text().splitlines():
        match json.loads(line):
            case ["started"]:
                session = Session()
            case ["session", name]:
                session = sessions[name] = Session()
            case ["resumed", _, n_updates]:
                session.n_updates = n_updates
            case ["cast", version, digest]:
                session.cast[version] = digest
    return sessions


def compare_sessions(of_ranks: Sequence[Mapping[str, Session]]) -> tuple[list[str], int]:
    """Compares what the ranks had in common.

    Returns:
        The differences, and the number of policies that several ranks sent in the same session.
    """
    found, n_compared = [], 0
    first, *others = of_ranks
    for rank, other in enumerate(others, 1):
        for name in first.keys() & other.keys():
            # a rank that has not sent its first policy may not have gone on yet
            if not (first[name].cast and other[name].cast):
                continue
            if first[name].n_updates != other[name].n_updates:
                found.append(
                    f"rank 0 went on after {first[name].n_updates} updates, {rank} after {other[name].n_updates}"
                )
            if min(first[name].cast) != min(other[name].cast):
                found.append(f"rank 0 began with version {min(first[name].cast)}, {rank} with {min(other[name].cast)}")
            common = first[name].cast.keys() & other[name].cast.keys()
            n_compared += len(common)
            different = [
                version for version in sorted(common) if first[name].cast[version] != other[name].cast[version]
            ]
            if different:
                found.append(
                    f"ranks 0 and {rank}, which went on after {first[name].n_updates} updates, sent {len(different)} "
                    f"of {len(common)} versions with other weights, the first of them {different[0]}"
                )
    return found, n_compared


class RankLineages:
    """The ledgers of all ranks, whose acknowledgements outlive them. Any thread may ask.

    An actor may go on at another rank. So each rank may lack what was acknowledged before the actor joined it, and all
    of them together must have every rollout once.

    Args:
        records: The files that the ranks write.
    """

    def __init__(self, records: Sequence[Path]) -> None:
        self.changed = threading.Condition()
        self.of = [Lineage(record, durable=False, changed=self.changed) for record in records]
        self.entries = Entries()

    def count(self, actor_id: str) -> int:
        """Times that something of an actor was learnt from; see `Lineage.count`."""
        return sum(lineage.count(actor_id) for lineage in self.of)

    @property
    def n_taken(self) -> int:
        """Times that anything was learnt from."""
        return sum(lineage.n_taken for lineage in self.of)

    def close(self) -> None:
        """Reads what there is to its end, and stops."""
        for lineage in self.of:
            lineage.close()

    def check(self, acknowledged: Mapping[str, Mapping[int, int]]) -> None:
        """Notes what several ranks have had, and what was acknowledged and no rank has; and what each has noted.

        Args:
            acknowledged: By actor and incarnation, the last sequence that was acknowledged.
        """
        had: dict[tuple[str, int], dict[int, set[int]]] = {}
        for rank, lineage in enumerate(self.of):
            for name, found in vars(lineage.entries).items():
                getattr(self.entries, name).extend(f"rank {rank}: {text}" for text in found)
            for (actor_id, incarnation, seed), sequences in lineage.sequences().items():
                before = had.setdefault((actor_id, incarnation), {}).setdefault(seed, set())
                if twice := before & sequences:
                    self.entries.duplicated.append(
                        f"rollouts {sorted(twice)} of {actor_id}, incarnation {incarnation}, environment {seed}, at "
                        f"rank {rank} and another"
                    )
                before |= sequences
        for actor_id, last in acknowledged.items():
            for incarnation, sequence in last.items():
                for seed, sequences in (had.get((actor_id, incarnation)) or {0: set()}).items():
                    if missing := set(range(1, sequence + 1)) - sequences:
                        self.entries.lost.append(
                            f"rollouts {sorted(missing)} of {actor_id}, incarnation {incarnation}, environment {seed}"
                        )
