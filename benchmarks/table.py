"""Tables of benchmarks: printed as Markdown, and written as JSON to the file that BENCHMARK_JSON names."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

VARIABLE = "BENCHMARK_JSON"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured quantity, one value a round; prints as the median, with a range on request."""

    rounds: Sequence[float]
    """One value a round; infinite: the round did not get there."""
    form: str = ",.0f"
    """Format of a number, as after the colon of an f-string."""
    unit: str = ""
    scale: float = 1.0
    """Factor from what was measured to the unit that is shown."""
    has_range: bool = False
    is_quartiles: bool = False
    """True: the printed range is that of the middle half of the rounds."""

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return self._quantile(0.5)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the rounds."""
        return self._quantile(0.25), self._quantile(0.75)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if not self.has_range:
            return self._text(self.value) + unit
        low, high = self.quartiles if self.is_quartiles else (self._quantile(0), self._quantile(1))
        return f"{self._text(self.value)}{unit} ({self._text(low)} to {self._text(high)})"

    def _text(self, value: float) -> str:
        return format(value, self.form) if math.isfinite(value) else "-"

    def _quantile(self, share: float) -> float:
        """Returns a quantile of the scaled rounds; the lower neighbour where the upper one is infinite."""
        ordered = sorted(self.scale * float(value) for value in self.rounds)
        place = share * (len(ordered) - 1)
        lower, upper = ordered[math.floor(place)], ordered[math.ceil(place)]
        return lower if math.isinf(upper) else lower + (place - math.floor(place)) * (upper - lower)


def ratio(ours: Iterable[float], theirs: Iterable[float], form: str = ".2f", *, is_quartiles: bool = False) -> Figure:
    """Returns the figure of ours divided by theirs, round by round."""
    rounds = [our / their for our, their in zip(ours, theirs, strict=True)]
    return Figure(rounds, form, has_range=True, is_quartiles=is_quartiles)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str | Figure]]) -> None:
    """Prints rows under a header, in aligned Markdown, and writes their figures if BENCHMARK_JSON names a file."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *texts)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    print(line(header))
    print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for row in texts:
        print(line(row))
    if path := os.environ.get(VARIABLE):
        write_figures(Path(path), header, rows)


def write_figures(path: Path, header: Sequence[str], rows: Sequence[Sequence[str | Figure]]) -> None:
    """Adds the figures of a table to a JSON file: a list with one object a figure."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    run = {
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
    }
    for row in rows:
        for column, cell in zip(header, row, strict=True):
            if isinstance(cell, Figure):
                found.append(
                    {
                        "benchmark": _running_benchmark(),
                        "row": str(row[0]),
                        "column": column,
                        "value": _finite(cell.value),
                        "unit": cell.unit,
                        "quartiles": [_finite(value) for value in cell.quartiles],
                        "rounds": len(cell.rounds),
                    }
                    | run
                )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _finite(value: float) -> float | None:
    """Returns a number as JSON can hold it; None: infinite."""
    return value if math.isfinite(value) else None


def commit() -> str | None:
    """Returns the commit of this tree, with a plus if files differ from it; None outside of a repository."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout

    try:
        name = git("rev-parse", "--short=8", "HEAD").strip()
        return name + "+" if git("status", "--porcelain", "--untracked-files=no").strip() else name
    except (OSError, subprocess.CalledProcessError):
        return None


def _running_benchmark() -> str:
    """Returns the name of the benchmark that runs, such as `ingest`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.rpartition(".")[2] if spec else Path(sys.argv[0]).stem
