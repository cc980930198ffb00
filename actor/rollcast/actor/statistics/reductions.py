"""How many values become one: a few reductions by name, which keep no values, and functions of one's own."""

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, Final, TypeAlias, get_args

import numpy as np

from rollcast.services.errors import StatisticsError
from rollcast.services.rollouts.statistics import Reduction

Statistic: TypeAlias = int | float
ReduceFunction: TypeAlias = Callable[[Sequence[Any]], Any]
# A reduction's name, the function of that name, or one's own.
Reduce: TypeAlias = str | ReduceFunction

# A median and a function of one's own see this many of the last values: memory is bounded whoever forgets an epoch.
MAX_KEPT: Final = 10_000
# Values that wait are reduced when there are so many: for one alone, that would cost more than to store it.
_MAX_PENDING: Final = 1024

_NAMES: Final[dict[Hashable, Reduction]] = {
    **{name: name for name in get_args(Reduction) if name != "own"},
    np.mean: "mean",
    statistics.mean: "mean",
    statistics.fmean: "mean",
    np.std: "std",
    statistics.pstdev: "std",
    min: "min",
    np.min: "min",
    max: "max",
    np.max: "max",
    sum: "sum",
    np.sum: "sum",
    math.fsum: "sum",
    len: "count",
    np.median: "median",
    statistics.median: "median",
}


def named_reduction(reduce: Reduce) -> Reduction:
    """The name of a reduction.

    Args:
        reduce: A name, a function that has one, or a function of one's own.

    Returns:
        Its name, `"own"` for the last.

    Raises:
        StatisticsError: It is neither a known name nor callable.
    """
    name = _NAMES.get(reduce) if isinstance(reduce, Hashable) else None
    if name is None and not callable(reduce):
        known = ", ".join(repr(name) for name in get_args(Reduction) if name != "own")
        raise StatisticsError(f"reduce is {reduce!r}; expected one of {known}, or a function; correct it")
    return name or "own"


class Accumulator(ABC):
    """Reduces values that come bit by bit. What it has come to is in `_kept`, the names of its attributes for that."""

    __slots__ = ()
    _kept: ClassVar[tuple[str, ...]]

    @abstractmethod
    def extend(self, values: Sequence[Statistic]) -> None:
        """Takes in values, at least one."""

    @abstractmethod
    def value(self) -> Statistic | None:
        """What they have come to; None where none have come and that means nothing."""

    def state(self) -> list[Any]:
        """What a checkpoint keeps of it: numbers, or a list of them."""
        return [getattr(self, name) for name in self._kept]

    def load_state(self, state: Sequence[Any]) -> None:
        """Goes on from what `state` has said."""
        for name, value in zip(self._kept, state, strict=True):
            setattr(self, name, value)


class _Count(Accumulator):
    __slots__ = _kept = ("_n",)

    def __init__(self) -> None:
        self._n = 0

    def extend(self, values: Sequence[Statistic]) -> None:
        self._n += len(values)

    def value(self) -> Statistic:
        return self._n


class _Sum(Accumulator):
    __slots__ = _kept = ("_total",)

    def __init__(self) -> None:
        self._total: Statistic = 0

    def extend(self, values: Sequence[Statistic]) -> None:
        self._total += sum(values)

    def value(self) -> Statistic:
        return self._total


class _Mean(Accumulator):
    __slots__ = _kept = ("_n", "_total")

    def __init__(self) -> None:
        self._n, self._total = 0, 0.0

    def extend(self, values: Sequence[Statistic]) -> None:
        self._n += len(values)
        self._total += sum(values)

    def value(self) -> Statistic | None:
        return self._total / self._n if self._n else None


class _Std(Accumulator):
    """Of the whole. Chan, Golub and LeVeque, "Updating Formulae", 1979: M2 = M2_a + M2_b + d^2 n_a n_b / n."""

    __slots__ = _kept = ("_m2", "_mean", "_n")

    def __init__(self) -> None:
        self._n, self._mean, self._m2 = 0, 0.0, 0.0

    def extend(self, values: Sequence[Statistic]) -> None:
        n, mean = len(values), sum(values) / len(values)
        difference, total = mean - self._mean, self._n + n
        # products, which become infinite where a power raises OverflowError: an actor may send 1e200
        self._m2 += sum((value - mean) * (value - mean) for value in values)
        if self._n:
            self._m2 += difference * difference * self._n * n / total
        self._mean += difference * n / total
        self._n = total

    def value(self) -> Statistic | None:
        return math.sqrt(self._m2 / self._n) if self._n else None


class _Extreme(Accumulator):
    __slots__ = ("_choose", "_found")
    _kept = ("_found",)

    def __init__(self, choose: ReduceFunction) -> None:
        self._choose = choose
        self._found: Statistic | None = None

    def extend(self, values: Sequence[Statistic]) -> None:
        found: Statistic = self._choose(values)
        self._found = found if self._found is None else self._choose((self._found, found))

    def value(self) -> Statistic | None:
        return self._found


class _Kept(Accumulator):
    __slots__ = ("_reduce", "_values")
    _kept = ("_values",)

    def __init__(self, reduce: ReduceFunction) -> None:
        self._reduce = reduce
        self._values: deque[Statistic] = deque(maxlen=MAX_KEPT)

    def extend(self, values: Sequence[Statistic]) -> None:
        self._values.extend(values)

    def value(self) -> Statistic | None:
        if not self._values:
            return None
        reduced = self._reduce(list(self._values))
        # numpy's scalars are no JSON.
        value: Statistic = reduced.item() if hasattr(reduced, "item") else reduced
        return value

    def state(self) -> list[Any]:
        return [list(self._values)]

    def load_state(self, state: Sequence[Any]) -> None:
        self._values = deque(state[0], maxlen=MAX_KEPT)


_ACCUMULATORS: Final[dict[Reduction, Callable[[], Accumulator]]] = {
    "count": _Count,
    "sum": _Sum,
    "mean": _Mean,
    "std": _Std,
    "min": lambda: _Extreme(min),
    "max": lambda: _Extreme(max),
    "median": lambda: _Kept(statistics.median),
}


def make_accumulator(reduction: Reduction, own: ReduceFunction | None = None) -> Accumulator:
    """Makes what reduces.

    Args:
        reduction: How.
        own: The function of a reduction that is `"own"`.
    """
    if reduction == "own":
        assert own is not None, "a function of one's own is given"
        return _Kept(own)
    return _ACCUMULATORS[reduction]()


class ValueSeries:
    """Feeds several accumulators with the same values; adding one costs little more than storing it."""

    __slots__ = ("_accumulators", "_n_folded", "_pending")

    def __init__(self, accumulators: Iterable[Accumulator]) -> None:
        self._accumulators = list(accumulators)
        self._pending: list[Statistic] = []
        self._n_folded = 0

    @property
    def n_values(self) -> int:
        """How many there have been."""
        return self._n_folded + len(self._pending)

    def append(self, value: Statistic) -> None:
        """Adds a value."""
        self._pending.append(value)
        if len(self._pending) >= _MAX_PENDING:
            self._fold()

    def values(self) -> list[Statistic | None]:
        """What each accumulator has come to."""
        self._fold()
        return [accumulator.value() for accumulator in self._accumulators]

    def accumulators(self) -> list[Accumulator]:
        """Each accumulator, with all values in it."""
        self._fold()
        return self._accumulators

    def replace(self, place: int, accumulator: Accumulator) -> None:
        """Starts one of them over."""
        self._fold()
        self._accumulators[place] = accumulator

    def _fold(self) -> None:
        if self._pending:
            for accumulator in self._accumulators:
                accumulator.extend(self._pending)
            self._n_folded += len(self._pending)
            self._pending.clear()
