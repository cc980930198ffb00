"""Reduces many values to one value, with named reductions or with users' own functions."""

import math
import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final, TypeAlias, get_args

import numpy as np

from rollcast.services.errors import StatisticsError
from rollcast.services.rollouts.statistics import Reduction

Statistic: TypeAlias = int | float
ReduceFunction: TypeAlias = Callable[[Sequence[Any]], Any]
# A reduction's name, the function of that name, or a user's own function.
Reduce: TypeAlias = str | ReduceFunction

# The number of last values that medians and users' own functions reduce, to bound memory if no epoch ends.
MAX_KEPT: Final = 10_000

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
    """Returns the name of a reduction.

    Args:
        reduce: A name, a known function (`sum`, `numpy.mean`, ...), or a user's own function.

    Returns:
        The name; `"own"` for a user's own function.

    Raises:
        StatisticsError: If `reduce` is neither a known name nor callable.
    """
    name = _NAMES.get(reduce) if isinstance(reduce, Hashable) else None
    if name is None and not callable(reduce):
        known = ", ".join(repr(name) for name in get_args(Reduction) if name != "own")
        raise StatisticsError(f"reduce is {reduce!r}; expected one of {known}, or a function; correct the decorator")
    return name or "own"


class Accumulator(ABC):
    """A reduction of values that arrive in several calls. `_kept` lists the attributes that a checkpoint stores."""

    __slots__ = ()
    _kept: ClassVar[tuple[str, ...]]

    @abstractmethod
    def extend(self, values: Sequence[Statistic]) -> None:
        """Adds values, at least one."""

    @abstractmethod
    def value(self) -> Statistic | None:
        """Returns the reduced value; None if the reduction needs a value and no value has arrived."""

    def state(self) -> list[Any]:
        """Returns the accumulator's state for a checkpoint: numbers, or lists of numbers."""
        return [getattr(self, name) for name in self._kept]

    def load_state(self, state: Sequence[Any]) -> None:
        """Restores the result of `state`."""
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
    """Population standard deviation.

    Chan, Golub and LeVeque, "Updating Formulae", 1979: M2 = M2_a + M2_b + d^2 n_a n_b / n.
    """

    __slots__ = _kept = ("_m2", "_mean", "_n")

    def __init__(self) -> None:
        self._n, self._mean, self._m2 = 0, 0.0, 0.0

    def extend(self, values: Sequence[Statistic]) -> None:
        n, mean = len(values), sum(values) / len(values)
        difference, total = mean - self._mean, self._n + n
        # Products, not powers: an actor may send 1e200, where a power raises OverflowError.
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
        # JSON cannot hold numpy's scalars.
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
    """Makes the accumulator of a reduction.

    Args:
        reduction: The reduction's name.
        own: The user's function, for `"own"`.
    """
    if reduction == "own":
        assert own is not None, "'own' comes with a function"
        return _Kept(own)
    return _ACCUMULATORS[reduction]()
