"""Decides how many actors a learner wants, with hysteresis and limits; uses neither clock nor network.

Imports no library, because settings import the rules.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollcast.tools.scaling.waits import Waits

# Below this share of the wanted actors, the others are still starting.
_PRESENT = 0.8
# The share of a window in which actors must wait before the controller removes some.
_ACTORS_WAIT = 0.5
# The share of actors that remains when there are too many.
_SHRINK = 0.8
# The share of the proportional gain that steps up must bring, and the growth from which they are judged. The gain of
# less growth is a few percent, and noise would hide it.
_GAIN = 0.25
_JUDGED = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """The rules of a controller.

    Attributes:
        min_actors: The fewest actors during training.
        max_actors: The most actors.
        up_above: The controller adds actors if the trainer waits for more than this share of its time.
        down_below: The controller removes actors only if the trainer waits for less than this share of its time.
        max_growth: The largest factor by which one step raises the number of actors.
        cooldown_s: Seconds between a change and the next step down.
        retry_s: Seconds until the controller retries a number that was too small or brought no gain.
    """

    min_actors: int = 1
    max_actors: int = 64
    up_above: float = 0.1
    down_below: float = 0.02
    max_growth: float = 2.0
    cooldown_s: float = 60.0
    retry_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class _Bound:
    """A number of actors that was tried, and the time until which it counts."""

    n_actors: int
    until: float


@dataclass(frozen=True, slots=True)
class _Step:
    """The number of actors before steps up whose gain is not known yet, and its training speed."""

    n_actors: int
    env_steps_per_second: float


class ScalingController:
    """Finds the fewest actors that keep the trainer busy. Used by one thread.

    - If the trainer waits for a share w of its time, above `up_above`, n actors become n / (1 - w). One step multiplies
      the number by `max_growth` at most.
    - If the trainer hardly waits but actors do, the controller removes a fifth of the actors, at least one. It keeps
      the number if the new number was too small within `retry_s`. This rule, the band between the two thresholds and
      `cooldown_s` prevent oscillation.
    - The controller judges increases by half or more. If the trainer still waits, and the speed has grown by less than
      a quarter of the proportional gain, it undoes the increase for `retry_s`. The actors then lack cores, or the
      algorithm waits for each batch. A window without updates does not judge them, because the learner stood still.

    Invariant: `min_actors` <= `wanted` <= `max_actors`.

    Args:
        rules: The rules for the number.
        n_actors: The current number of actors.
    """

    def __init__(self, rules: ScalingRules, n_actors: int) -> None:
        self._rules = rules
        self._wanted = min(max(n_actors, rules.min_actors), rules.max_actors)
        self._reason = f"there are {n_actors}"
        self._changed_at = -math.inf
        self._too_few: _Bound | None = None
        self._useless: _Bound | None = None
        self._step: _Step | None = None
        self._withheld = ""

    @property
    def withheld(self) -> str:
        """The reason why the last decision removed no actors although the waits suggest it; empty if they do not."""
        return self._withheld

    @property
    def wanted(self) -> int:
        """The wanted number of actors."""
        return self._wanted

    @property
    def reason(self) -> str:
        """The reason for the wanted number."""
        return self._reason

    def has(self, n_actors: int) -> bool:
        """Returns whether enough of the wanted actors are connected for a decision."""
        return n_actors >= _PRESENT * self._wanted

    def decide(self, waits: "Waits", now: float) -> bool:
        """Decides from a full window that began after the last change.

        Args:
            waits: The waits in the window.
            now: The time, in seconds of a monotonic clock.

        Returns:
            True if the wanted number has changed, or the window cannot judge it; the caller then begins a new window.
        """
        self._withheld = ""
        if self._too_few is not None and now >= self._too_few.until:
            self._too_few = None
        if self._useless is not None and now >= self._useless.until:
            self._useless = None
        if waits.learner > self._rules.up_above:
            step = self._step
            if step is None or min(waits.n_actors, self._wanted) < _JUDGED * step.n_actors:
                return self._raise(waits, now)
            if waits.env_steps_per_second <= 0.0:
                return True
            self._step = None
            return (
                self._take_back(step, waits, now) if self._gained_too_little(step, waits) else self._raise(waits, now)
            )
        self._step = None
        if waits.learner < self._rules.down_below and waits.actors >= _ACTORS_WAIT:
            return self._lower(waits, now)
        return False

    def _gained_too_little(self, step: _Step, waits: "Waits") -> bool:
        expected = _GAIN * (min(waits.n_actors, self._wanted) / step.n_actors - 1)
        return waits.env_steps_per_second < step.env_steps_per_second * (1 + expected)

    def _take_back(self, step: _Step, waits: "Waits", now: float) -> bool:
        self._useless = _Bound(step.n_actors, now + self._rules.retry_s)
        return self._change(
            step.n_actors,
            f"{self._wanted} actors trained {waits.env_steps_per_second:,.0f} steps/s, {step.n_actors} had "
            f"{step.env_steps_per_second:,.0f}",
            now,
        )

    def _raise(self, waits: "Waits", now: float) -> bool:
        rules = self._rules
        most = rules.max_growth * self._wanted
        needed = waits.n_actors / (1 - waits.learner) if waits.learner < 1 else math.inf
        wanted = min(math.ceil(min(needed, most)), rules.max_actors)
        if self._useless is not None:
            wanted = min(wanted, self._useless.n_actors)
        if wanted <= self._wanted:
            return False
        self._too_few = _Bound(self._wanted, now + rules.retry_s)
        self._step = self._step or _Step(self._wanted, waits.env_steps_per_second)
        return self._change(wanted, f"the trainer waited {waits.learner:.0%} of its time", now)

    def _lower(self, waits: "Waits", now: float) -> bool:
        rules = self._rules
        if now - self._changed_at < rules.cooldown_s:
            return False
        least = rules.min_actors if self._too_few is None else max(rules.min_actors, self._too_few.n_actors + 1)
        wanted = max(math.floor(_SHRINK * self._wanted), least)
        reason = f"the actors waited in {waits.actors:.0%} of the time, the trainer did not"
        if wanted >= self._wanted:
            if self._too_few is not None and least > rules.min_actors:
                left_s = self._too_few.until - now
                self._withheld = f"{reason}, but {self._too_few.n_actors} were too few; tried again in {left_s:.0f} s"
            return False
        return self._change(wanted, reason, now)

    def _change(self, wanted: int, reason: str, now: float) -> bool:
        self._wanted, self._reason, self._changed_at = wanted, reason, now
        return True
