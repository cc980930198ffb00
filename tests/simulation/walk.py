"""Walks every short schedule of a machine that decides: whatever can happen, in whatever order, up to a length."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar


class Case(Protocol):
    """A machine with those who use it, and an oracle that knows what must be true."""

    def events(self) -> Sequence[Hashable]:
        """Returns what can happen next."""

    def happen(self, event: Any) -> None:
        """Lets something happen; raises an `AssertionError` if something is not as it must be."""

    def settle(self) -> None:
        """Lets all that can go on do so, as after the last fault; raises an `AssertionError` if something cannot.

        The case is not used afterwards.
        """


_Case = TypeVar("_Case", bound=Case)


def walk(make: Callable[[], _Case], longest: int) -> int:
    """Walks all schedules, the shortest first, so that a failure is shown by a shortest one.

    Args:
        make: Makes a case at its beginning. What it does must depend on its events alone.
        longest: The most events of a schedule.

    Returns:
        The number of schedules.

    Raises:
        AssertionError: A schedule has failed; the message has its events.
    """
    schedules: list[tuple[Hashable, ...]] = [()]
    n = 0
    for length in range(longest + 1):
        longer: list[tuple[Hashable, ...]] = []
        for schedule in schedules:
            n += 1
            case = _run(make, schedule)
            if length < longest:
                longer += [(*schedule, event) for event in case.events()]
            try:
                case.settle()
            except Exception as error:
                raise AssertionError(f"after {_text(schedule)}: {error}") from error
        schedules = longer
    return n


def _run(make: Callable[[], _Case], schedule: Sequence[Hashable]) -> _Case:
    case = make()
    for i, event in enumerate(schedule):
        try:
            case.happen(event)
        except Exception as error:
            raise AssertionError(f"{_text(schedule[: i + 1])}: {error}") from error
    return case


def _text(schedule: Sequence[Hashable]) -> str:
    return ", ".join(map(str, schedule)) or "nothing"
