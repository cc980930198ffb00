"""Detects an environment that hangs in a step, from a separate thread."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Self

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.periodic import PeriodicThread

# Time beyond a step's limit before the process is ended, in seconds: environments in processes report first.
GRACE_S = 5.0

# Seconds between two checks; a short limit has at least four checks.
_LOOK_S = 1.0
_LOOKS_A_LIMIT = 4


class StepWatchdog:
    """A timer that calls `on_hang`, once, when a step takes longer than `timeout_s`.

        with StepWatchdog(300.0, on_hang) as watchdog:
            for ... in rollout:
                watchdog.beat()       # a step begins
                vector_env.step(...)
            watchdog.rest()           # no step is running

    The acting thread makes the watchdog and reports its steps. If an environment hangs while it holds the interpreter's
    lock, the watchdog cannot run. Then only the heartbeat file shows the hang.

    Args:
        timeout_s: The longest duration of a step or a reset, in seconds.
        on_hang: Called from the watchdog's thread with the elapsed seconds and the stack of the acting thread.

    Raises:
        ConfigurationError: `timeout_s` is not positive.
    """

    def __init__(self, timeout_s: float, on_hang: Callable[[float, str], None]) -> None:
        if not timeout_s > 0:
            raise ConfigurationError(f"step_timeout_s is {timeout_s}; expected a positive number of seconds; raise it")
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._acting_thread = threading.get_ident()
        self._since: float | None = None
        self._watch = PeriodicThread(self._look, min(_LOOK_S, timeout_s / _LOOKS_A_LIMIT), name="step-watchdog")

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._watch.close()

    def beat(self) -> None:
        """Notes that a step begins."""
        self._since = time.monotonic()

    def rest(self) -> None:
        """Notes that no step is running."""
        self._since = None

    def _look(self) -> None:
        since = self._since
        if since is not None and (passed := time.monotonic() - since) > self._timeout_s:
            self._watch.stop()
            frame = sys._current_frames().get(self._acting_thread)
            self._on_hang(passed, "".join(traceback.format_stack(frame)))
