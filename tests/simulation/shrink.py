"""Makes a schedule that fails small: the fewest faults, actors and switches that still fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The end of a schedule.

    Attributes:
        failure: What was wrong; empty if nothing was.
        switches: The decisions that were not the plain ones, by number.
        sizes: Of a schedule whose switches were given: among how many each decision was.
    """

    failure: str
    n_steps: int
    switches: dict[int, int]
    sizes: Sequence[int] = ()


def shrink(
    scenario: Any,
    outcome: Outcome,
    run: Callable[[Any, dict[int, int]], Outcome],
    *,
    goes_on: Callable[[], bool],
) -> tuple[Any, Outcome]:
    """Returns a smaller scenario that fails, too, and how.

    Args:
        scenario: A scenario that fails; its `smaller` yields others.
        outcome: How it fails.
        run: Runs a scenario with given switches.
        goes_on: Returns False once there is no more time.
    """
    is_smaller = True
    while is_smaller and goes_on():
        is_smaller = False
        for smaller in scenario.smaller():
            again = run(smaller, outcome.switches)
            if again.failure:
                scenario, outcome, is_smaller = smaller, again, True
                break
        n = max(1, len(outcome.switches) // 2)
        while n and goes_on():
            kept = sorted(outcome.switches)
            for start in range(0, len(kept), n):
                left = set(kept[:start]) | set(kept[start + n :])
                again = run(scenario, {i: outcome.switches[i] for i in left})
                if again.failure:
                    # Fewer are asked for than were met: those that were met count.
                    is_smaller = len(again.switches) < len(outcome.switches)
                    outcome = again
                    break
                if not goes_on():
                    break
            else:
                n //= 2
    return scenario, outcome
