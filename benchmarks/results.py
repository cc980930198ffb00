"""The recorded figures of benchmarks/results.json, and their text on pages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")
# Units in which less is better.
COSTS = {"s", "ms", "us", "KB", "MB", "MiB", "ms a rollout", "env steps"}

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A value with its unit, and what the rounds were between."""

    value: float
    unit: str
    quartiles: Range | None = None
    range: Range | None = None
    """The smallest and the largest round."""

    def __str__(self) -> str:
        return f"{shown(self.value)} {self.unit}" + _between(self.quartiles or self.range)


@dataclass(frozen=True, slots=True)
class Compared:
    """The other side of a comparison: a ceiling, a peer, or rollcast without something."""

    name: str
    value: float | None = None
    """In the unit of ours."""
    ratio: float | None = None
    """Ours divided by it: the median of the ratios of all rounds."""
    time_ratio: float | None = None
    """The time that ours takes divided by its time, where both are shown as speeds."""
    range: Range | None = None
    ratio_quartiles: Range | None = None
    ratio_range: Range | None = None

    def text(self, unit: str) -> str:
        """Returns name and value."""
        if self.value is None:
            return self.name
        short = f" {unit}" if len(unit) <= len("MB/s") else ""
        return f"{self.name} {shown(self.value)}{short}" + _between(self.range)

    def ratio_text(self) -> str:
        """Returns the ratio with what its rounds were between; empty without a ratio."""
        if self.time_ratio is not None:
            return f"{self.time_ratio:.2f} of the time"
        if self.ratio is None:
            return ""
        return shown(self.ratio) + _between(self.ratio_quartiles or self.ratio_range)


@dataclass(frozen=True, slots=True)
class Headline:
    """The text of a result on the first page and in the chart."""

    question: str
    result: str
    """In words, with `{ratio}` for ours divided by what it is compared with."""
    chart: str
    """The name of its bar."""
    compared: str | None = None
    """The name of the side that it is compared with; None: the first."""
    readme: bool = False
    """True for the four figures of the README."""


@dataclass(frozen=True, slots=True)
class Result:
    """One recorded measurement."""

    section: str
    """The table that it stands in, named after the benchmark."""
    question: str
    command: str
    ours: Measured
    compared_with: tuple[Compared, ...]
    target: str | None
    is_met: bool | None
    rounds: int | None
    """None: not recorded."""
    load: str
    """The load average of other work on the machine."""
    date: str
    commit: str | None
    """None: not recorded; it was no later than the date."""
    headline: Headline | None = None

    @property
    def compared(self) -> Compared:
        """The other side of the headline's comparison."""
        name = self.headline.compared if self.headline else None
        return next(one for one in self.compared_with if name in (None, one.name))

    @property
    def ratio(self) -> float:
        """Ours divided by what the headline compares with, in the unit of both."""
        other = self.compared
        if other.time_ratio is not None:
            return 1 / other.time_ratio
        if other.ratio is not None:
            return other.ratio
        assert other.value is not None
        return self.ours.value / other.value

    @property
    def speed(self) -> float:
        """The speed of ours, divided by that of the other side of the headline's comparison."""
        return 1 / self.ratio if self.ours.unit in COSTS else self.ratio


def read(path: Path = FILE) -> list[Result]:
    """Reads the recorded results.

    Raises:
        ValueError: a row has a name that no row has, or lacks one.
    """
    return [_result(row) for row in json.loads(path.read_text(encoding="utf-8"))]


def shown(value: float) -> str:
    """Returns a number in at most four digits: 117k, 1,795, 0.87."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def in_words(ratio: float) -> str:
    """Returns a ratio as people say it: 92 %, or 9.6 times."""
    if ratio < 1:
        return f"{100 * ratio:.0f} %"
    return f"{ratio:.3g} times" if ratio < 2 else f"{ratio:.2g} times"


def _between(values: Range | None) -> str:
    return f" ({shown(values[0])} to {shown(values[1])})" if values else ""


def _result(row: Mapping[str, Any]) -> Result:
    try:
        return Result(
            **{
                **row,
                "ours": Measured(**_with_tuples(row["ours"])),
                "compared_with": tuple(Compared(**_with_tuples(one)) for one in row["compared_with"]),
                "headline": Headline(**row["headline"]) if "headline" in row else None,
            }
        )
    except (TypeError, KeyError) as error:
        raise ValueError(f"results.json: {row.get('question', row)}: {error}; expected the fields of Result") from error


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for key, value in values.items()
    }
