"""The recorded numbers, and what a change of them is.

`numbers.md` is the table of budgets. `sites.json` has the same numbers by function, to explain a change.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tests.budgets.paths import Counts, Measured

# The columns of the table. Whatever is measured has one.
KINDS = (
    "Python calls",
    "C calls",
    "locks",
    "threads woken",
    "messages",
    "bytes sent",
    "arrays",
    "bytes copied",
    "operations",
)
# By scenario, work and kind.
Numbers: TypeAlias = dict[str, dict[str, dict[str, int]]]

_FOLDER = Path(__file__).parent
_NUMBERS, _SITES = _FOLDER / "numbers.md", _FOLDER / "sites.json"
_HEAD = ("scenario", "work")
_WIDTHS = (19, 50, *map(len, KINDS))
# The functions that explain most of a change.
_N_SITES = 8


def totals(counts: Counts) -> dict[str, int]:
    """Sums counts up by kind."""
    total: Counter[str] = Counter()
    for (kind, _), n in counts.items():
        total[kind] += n
    assert total.keys() <= set(KINDS), f"{total}: a column is missing"
    return {kind: total[kind] for kind in KINDS}


def drawn(measured: Mapping[str, Measured]) -> str:
    """Draws the table of what was measured, by scenario."""
    rows = [
        (scenario, work, *(str(n or "") for n in totals(counts).values()))
        for scenario, works in measured.items()
        for work, counts in works.items()
    ]
    return "".join(map(_line, [(*_HEAD, *KINDS), ("-" * 3, "-" * 3, *["--:"] * len(KINDS)), *rows]))


def _line(cells: tuple[str, ...]) -> str:
    texts, numbers = len(_HEAD), _WIDTHS[len(_HEAD) :]
    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS[:texts], strict=False)]
    padded += [cell.rjust(width) for cell, width in zip(cells[texts:], numbers, strict=True)]
    return f"| {' | '.join(padded)} |\n"


def write(measured: Mapping[str, Measured]) -> None:
    """Writes what was measured, of all scenarios, into both files."""
    _NUMBERS.write_text(drawn(measured), encoding="utf-8")
    lines = [
        f"{json.dumps(_name(scenario, work, kind))}: {json.dumps(by_site, sort_keys=True)}"
        for scenario, works in measured.items()
        for work, counts in works.items()
        for kind in KINDS
        if (by_site := _by_site(counts, kind))
    ]
    _SITES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read() -> Numbers:
    """Reads the recorded numbers."""
    numbers: Numbers = {}
    for line in _NUMBERS.read_text(encoding="utf-8").splitlines()[2:]:
        scenario, work, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers.setdefault(scenario, {})[work] = {kind: int(n or 0) for kind, n in zip(KINDS, cells, strict=True)}
    return numbers


def differences(scenario: str, measured: Measured) -> list[str]:
    """Returns in lines what differs from the recorded numbers of a scenario, and by which functions."""
    recorded, sites = read().get(scenario, {}), json.loads(_SITES.read_text(encoding="utf-8"))
    nothing: Counts = Counter()
    found: list[str] = []
    for work in {**recorded, **measured}:
        counts = measured.get(work, nothing)
        before = recorded.get(work, {})
        for kind, n in totals(counts).items():
            if n != before.get(kind, 0):
                found.append(f"{scenario}, {work}: {before.get(kind, 0)} {kind} before, {n} now")
                found += _explained(sites.get(_name(scenario, work, kind), {}), _by_site(counts, kind))
    return found


def _explained(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    changes = {site: now.get(site, 0) - before.get(site, 0) for site in {**before, **now}}
    largest = sorted((site for site in changes if changes[site]), key=lambda site: (-abs(changes[site]), site))
    lines = [f"  {changes[site]:+} in {site}: {before.get(site, 0)} -> {now.get(site, 0)}" for site in largest]
    n_more = len(lines) - _N_SITES
    return [*lines[:_N_SITES], f"  and {n_more} more functions"] if n_more > 0 else lines


def _by_site(counts: Counts, kind: str) -> dict[str, int]:
    return {site: n for (each, site), n in counts.items() if each == kind and n}


def _name(scenario: str, work: str, kind: str) -> str:
    return f"{scenario}, {work}: {kind}"
