"""Prints the results as tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.ledger import Entries

_FINDINGS = ("lost", "duplicated", "out of order", "corrupt", "hangs", "failures")


class AnyFault(Protocol):
    """A fault; its `str` says all about it."""

    @property
    def kind(self) -> str:
        """The name under which it is counted."""


@dataclass(frozen=True)
class Recovery:
    """One fault, and the seconds until its victim showed signs of life again; None: never."""

    victim: str
    fault: AnyFault
    seconds: float | None


@dataclass
class Report:
    """The results of one suite.

    Attributes:
        recoveries: One for each fault.
        n_rollouts: Rollouts that were accepted, or learnt from.
        n_acknowledged: Rollouts that were acknowledged to actors.
        entries: The faults that the ledger found.
        hangs: Waits that went past their deadlines.
        failures: Processes that ended by themselves, and messages that were expected and did not come.
        notes: Other counts, which are no faults.
    """

    suite: str
    seed: int
    recoveries: list[Recovery] = field(default_factory=list)
    n_rollouts: int = 0
    n_acknowledged: int = 0
    entries: Entries = field(default_factory=Entries)
    hangs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    n_starts: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """True if nothing was lost, doubled, out of order or wrong, nothing hung, and nothing failed."""
        return not (self.entries.all() or self.hangs or self.failures)

    def findings(self) -> tuple[int, ...]:
        """The number of each, in the order of the table's columns."""
        found = self.entries
        lists = (found.lost, found.duplicated, found.disordered, found.corrupt, self.hangs, self.failures)
        return tuple(map(len, lists))

    def __str__(self) -> str:
        kinds = sorted({recovery.fault.kind for recovery in self.recoveries})
        rows = [_row(kind, [r.seconds for r in self.recoveries if r.fault.kind == kind]) for kind in kinds]
        total = _row("all", [recovery.seconds for recovery in self.recoveries])
        counted = [f"{name} {n}" for name, n in zip(_FINDINGS, self.findings(), strict=True)]
        return "\n".join(
            (
                f"{self.suite}, seed {self.seed}: {self.n_rollouts} rollouts accepted, {self.n_acknowledged} "
                f"acknowledged to their actors, {self.n_starts} processes, {self.seconds:.0f} s",
                f"{'fault':<15} {'faults':>7} {'recovered':>10} {'median s':>9} {'slowest s':>10}",
                *rows,
                total,
                "; ".join((", ".join(counted), ", ".join(f"{name} {n}" for name, n in self.notes.items()))),
                *self.entries.all(),
                *(f"hang: {hang}" for hang in self.hangs),
                *(f"failure: {failure}" for failure in self.failures),
            )
        )


def summary(reports: Sequence[Report]) -> str:
    """One table: a line for each suite, over all its rounds, and one that has their sum."""
    head = f"{'suite':<16} {'faults':>7} {'recovered':>10} {'slowest s':>10}" + "".join(
        f" {name:>13}" for name in _FINDINGS
    )
    suites: dict[str, list[Report]] = {}
    for report in reports:
        suites.setdefault(report.suite, []).append(report)
    lines = [head + f" {'took s':>8}"]
    for name, rounds in [*suites.items(), ("all", reports)]:
        recoveries = [recovery.seconds for report in rounds for recovery in report.recoveries]
        known = [seconds for seconds in recoveries if seconds is not None]
        findings = map(sum, zip(*(report.findings() for report in rounds), strict=True))
        lines.append(
            f"{name:<16} {len(recoveries):>7} {len(known):>10} {max(known, default=0.0):>10.2f}"
            + "".join(f" {n:>13}" for n in findings)
            + f" {sum(report.seconds for report in rounds):>8.0f}"
        )
    return "\n".join(lines)


def _row(kind: str, seconds: Sequence[float | None]) -> str:
    known = sorted(s for s in seconds if s is not None)
    median, slowest = (f"{known[len(known) // 2]:.2f}", f"{known[-1]:.2f}") if known else ("-", "-")
    return f"{kind:<15} {len(seconds):>7} {len(known):>10} {median:>9} {slowest:>10}"
