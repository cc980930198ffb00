"""What came of it, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.faults import Fault
from tests.chaos.ledger import Entries


@dataclass(frozen=True)
class Recovery:
    """One fault, and how long it took until its actor's rollouts were accepted again, in seconds; None: never."""

    actor_id: str
    fault: Fault
    seconds: float | None


@dataclass
class Report:
    """What came of one run.

    Attributes:
        learner: Which kind of learner.
        seed: Of everything.
        recoveries: One for each fault.
        n_rollouts: Accepted ones.
        n_acknowledged: Rollouts that actors were told of as accepted.
        entries: What the ledger found.
        duplicates_dropped: Rollouts that came again and were dropped, as they ought to.
        refused: Rollouts that did not fit and were refused.
        hangs: Waits that went past their deadlines.
        n_starts: Actor processes that were started.
    """

    learner: str
    seed: int
    recoveries: list[Recovery] = field(default_factory=list)
    n_rollouts: int = 0
    n_acknowledged: int = 0
    entries: Entries = field(default_factory=Entries)
    duplicates_dropped: int = 0
    refused: int = 0
    hangs: list[str] = field(default_factory=list)
    n_starts: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled, out of order or wrong, and nothing hung."""
        return not (self.entries.all() or self.hangs)

    def __str__(self) -> str:
        kinds = sorted({recovery.fault.kind for recovery in self.recoveries})
        rows = [_row(kind, [r.seconds for r in self.recoveries if r.fault.kind == kind]) for kind in kinds]
        total = _row("all", [recovery.seconds for recovery in self.recoveries])
        found = self.entries
        return "\n".join(
            (
                f"{self.learner} learner, seed {self.seed}: {self.n_rollouts} rollouts accepted, {self.n_acknowledged} "
                f"acknowledged to their actors, {self.n_starts} processes",
                f"{'fault':<12} {'faults':>7} {'recovered':>10} {'median s':>9} {'slowest s':>10}",
                *rows,
                total,
                f"lost {len(found.lost)}, duplicated {len(found.duplicated)}, out of order {len(found.disordered)}, "
                f"corrupt {len(found.corrupt)}, hangs {len(self.hangs)}; sent again and dropped "
                f"{self.duplicates_dropped}, refused {self.refused}",
                *found.all(),
                *(f"hang: {hang}" for hang in self.hangs),
            )
        )


def _row(kind: str, seconds: Sequence[float | None]) -> str:
    known = sorted(s for s in seconds if s is not None)
    median, slowest = (f"{known[len(known) // 2]:.2f}", f"{known[-1]:.2f}") if known else ("-", "-")
    return f"{kind:<12} {len(seconds):>7} {len(known):>10} {median:>9} {slowest:>10}"
