"""Reasons for the learner's waits, as text for the status and the log."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorInfo, ActorState

logger = logging.getLogger(__name__)

# Shorter waits are normal: the trainer waits for a batch between updates.
FIRST_S = 10.0
INTERVAL_S = 60.0


class WaitLog:
    """Logs a wait at INFO after 10 s, and every minute after that. For one thread."""

    def __init__(self) -> None:
        self._due_s = FIRST_S

    def note(self, reason: str, seconds: float) -> None:
        """Logs the wait if it is due. Call it repeatedly during a wait.

        Args:
            reason: The reason for the wait, with its numbers.
            seconds: The seconds of waiting so far. Less than `FIRST_S` means a new wait.
        """
        if seconds < FIRST_S:
            self._due_s = FIRST_S
        elif seconds >= self._due_s:
            self._due_s = seconds + INTERVAL_S
            logger.info("waiting %.0f s for %s", seconds, reason)


class WaitMonitor:
    """The reasons for one thread's waits. Only that thread writes; any thread may read.

    Waits may nest. `current` returns the reasons of all nested waits, outermost first, with the time of the outermost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._reasons: list[str] = []
        self._since = 0.0
        self._log = WaitLog()

    @contextmanager
    def waiting_for(self, reason: str) -> Iterator[None]:
        """Marks the time in the body as a wait for `reason`."""
        with self._lock:
            if not self._reasons:
                self._since = time.monotonic()
            self._reasons.append(reason)
        try:
            yield
        finally:
            with self._lock:
                self._reasons.pop()

    def explain(self, reason: str) -> None:
        """Replaces the innermost reason by a more exact one without resetting the time. Logs the wait if it is long.

        Call it repeatedly during a wait.
        """
        with self._lock:
            if not self._reasons:
                return
            self._reasons[-1] = reason
        self._log.note(*self.current())

    def current(self) -> tuple[str, float]:
        """Returns the reason, empty without a wait, and the seconds of waiting."""
        with self._lock:
            if not self._reasons:
                return "", 0.0
            return ", and so for ".join(self._reasons), time.monotonic() - self._since


# The quiet time after which an actor's environments are named as the cause. Shorter waits are normal: at a tenth of a
# second a step, a rollout of 32 steps takes some seconds.
QUIET_S: Final = 10.0


def is_played(infos: Sequence[ActorInfo], since: float, *, longest_s: float) -> bool:
    """Returns whether a connected actor has been playing one rollout since a time, because its steps are slow.

    A step that hangs ends rollcast's own actors after their `--step-timeout-s`. Other actors may report a rollout
    forever.

    Args:
        infos: Every actor that has joined.
        since: The time, monotonic.
        longest_s: From `longest_rollout_s`.
    """
    seconds = time.monotonic() - since
    return any(
        info.state is ActorState.STREAMING
        and info.acting_state is ActingState.ACTING
        and seconds <= info.idle_s <= longest_s
        for info in infos
    )


def longest_rollout_s(n_rollout_steps: int, collect_timeout_s: float) -> float:
    """Returns the seconds after which an actor without a rollout no longer counts as playing, whatever it reports.

    Each step may take the default of `--step-timeout-s`, or `collect_timeout_s` if that is longer.

    Args:
        n_rollout_steps: T.
        collect_timeout_s: The longest wait for a rollout while no actor plays, in seconds.
    """
    return n_rollout_steps * max(collect_timeout_s, DEFAULT_STEP_TIMEOUT_S)


def explain_wait(infos: Sequence[ActorInfo], addresses: Sequence[str], *, n_in_step: int = 0, dialled: str = "") -> str:
    """Returns a sentence that names the actors for which the trainer waits, and advice.

    Args:
        infos: Every actor that has joined.
        addresses: The addresses at which the learner listens.
        n_in_step: The number of necessary actors if they play in step; 0 if one is enough.
        dialled: The addresses at which the learner's own actor serves environments; empty: it has no such actor. That
            actor leaves while no environment is connected.
    """
    streaming = [info for info in infos if info.state is ActorState.STREAMING]
    if streaming and len(streaming) >= n_in_step:
        quietest = max(streaming, key=lambda info: info.idle_s)
        connected = "1 connected actor" if len(streaming) == 1 else f"{len(streaming)} connected actors"
        blame = (
            ": their environments are slow or hang; if steps take seconds, lower --n-rollout-steps"
            if quietest.idle_s >= QUIET_S
            else ""
        )
        return f"rollouts from {connected} ({quietest.actor_id} has been quiet for {quietest.idle_s:.0f} s){blame}"
    where = ", ".join(addresses)
    gone = "".join(
        f"; {info.actor_id} is {info.state.name.lower()}" + (f": {info.last_error}" if info.last_error else "")
        for info in [info for info in infos if info not in streaming][:3]
        if not dialled or info.state is not ActorState.LEFT
    )
    if streaming:
        return (
            f"{n_in_step - len(streaming)} more actors to join at {where}, because with --deterministic all of "
            f"{n_in_step} play in step: start them with `rollcast actor --learner-address HOST:PORT`{gone}"
        )
    if dialled:
        return f"environments to dial in at {dialled}: start one there{gone}"
    return f"an actor to join at {where}: start one with `rollcast actor --learner-address HOST:PORT`{gone}"
