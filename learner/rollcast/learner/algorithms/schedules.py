"""Schedules: a quantity as a function of the progress of training."""

from collections.abc import Callable
from typing import Final, Literal

from rollcast.services.errors import ConfigurationError

ScheduleKind = Literal["constant", "linear"]

# Maps progress in [0, 1] to the quantity's value.
Schedule = Callable[[float], float]

# The share of its first value at which a falling quantity stays. With 0, a run that has not learnt its task at the end
# of its planned steps would learn no more, even if it is resumed with more steps.
FLOOR: Final = 0.05


def linear(start: float, end: float) -> Schedule:
    """Returns a schedule that is linear from `start` at progress 0 to `end` at progress 1.

    Progress outside [0, 1] is clipped, because a run may end a few steps after its planned total.
    """

    def value_at(progress: float) -> float:
        fraction = min(max(progress, 0.0), 1.0)
        # not start + (end - start) * fraction, which may miss `end` by a rounding error at 1
        return start * (1.0 - fraction) + end * fraction

    return value_at


def make_schedule(kind: ScheduleKind, start: float) -> Schedule:
    """Makes a schedule of a given kind.

    Args:
        kind: `"constant"`, or `"linear"`, which falls to `FLOOR` times the start.
        start: The value at progress 0; any number.

    Returns:
        A function from progress in [0, 1] to the value.

    Raises:
        ConfigurationError: If the kind is unknown.
    """
    if kind == "constant":
        return lambda progress: start
    if kind == "linear":
        return linear(start, FLOOR * start)
    raise ConfigurationError(f"There is no schedule {kind!r}; expected 'constant' or 'linear'. Choose one of them.")
