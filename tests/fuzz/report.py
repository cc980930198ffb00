"""Prints the results of a run of the fuzzer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """The results of one target's messages.

    Attributes:
        name: The target's.
        n_messages: How many it got.
        edges: Branches of our code that they reached, as libFuzzer counts them.
        features: The same, with how often.
        kinds: How many were accepted, and refused by which error.
        largest_bytes: The allocation that came nearest to its bound.
        largest_bound: That bound.
        cpu_s: Processor time that they took.
        findings: What no message should do; empty: none did.
    """

    name: str
    n_messages: int
    edges: int
    features: int
    kinds: Mapping[str, int]
    largest_bytes: int
    largest_bound: int
    cpu_s: float
    findings: Sequence[str]

    @property
    def row(self) -> str:
        """A row of the report's table."""
        refused = {kind: n for kind, n in self.kinds.items() if kind not in ("accepted", "finding")}
        by_kind = ", ".join(f"{kind} {n:,}" for kind, n in sorted(refused.items(), key=lambda item: -item[1]))
        cells = (
            self.name.replace("_", " "),
            f"{self.n_messages:,}",
            f"{self.edges:,} / {self.features:,}",
            f"{self.kinds.get('accepted', 0):,}",
            f"{sum(refused.values()):,} ({by_kind})",
            f"{self.largest_bytes / 1024:,.0f} of {self.largest_bound / 1024:,.0f} KiB",
            str(len(self.findings)),
        )
        return f"| {' | '.join(cells)} |"


class Report:
    """All targets of a run."""

    _TITLES = ("target", "messages", "edges / features", "accepted", "refused", "largest allocation", "findings")

    def __init__(self, seed: int, targets: Sequence[TargetReport]) -> None:
        self._seed = seed
        self._targets = targets

    @property
    def is_clean(self) -> bool:
        """True if there is no finding."""
        return not any(target.findings for target in self._targets)

    def __str__(self) -> str:
        """A table in Markdown, the sums, and every finding."""
        lines = [f"| {' | '.join(self._TITLES)} |", "|---|--:|--:|--:|---|--:|--:|"]
        lines += [target.row for target in self._targets]
        n_messages = sum(target.n_messages for target in self._targets)
        n_findings = sum(len(target.findings) for target in self._targets)
        cpu_s = sum(target.cpu_s for target in self._targets)
        lines += ["", f"{n_messages:,} messages, seed {self._seed}, {cpu_s:,.0f} s of a core, findings {n_findings}"]
        lines += [f"{target.name}: {finding}" for target in self._targets for finding in target.findings]
        return "\n".join(lines)
