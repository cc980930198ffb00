"""Watches a learner and keeps the number of actors that it wants, across restarts, silence and the end of training."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rollcast.services.errors import NotReadyError, PermissionDeniedError, RollcastError, UnauthenticatedError
from rollcast.services.metrics.families import Families
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools.scaling.controller import ScalingController, ScalingRules
from rollcast.tools.scaling.waits import Waits, WaitWindow

logger = logging.getLogger(__name__)

# Errors that do not pass with time.
_REFUSALS: Final = (UnauthenticatedError, PermissionDeniedError)


class Scaler:
    """The number of actors that a learner wants. One thread calls `look`; any thread may call `wanted`.

    While the learner does not answer, the number stays for `hold_s`, because a learner that is replaced needs its
    actors. After that, `wanted` raises, and KEDA changes nothing. Once training has ended, the number is 0, even if the
    learner is gone. The first number is that of the actors connected one window after the learner's first answer. Until
    then `wanted` raises, because actors may still reconnect.

    Args:
        ask: Returns the learner's status.
        rules: The rules for the number.
        window_s: Seconds of waits for one decision; also the time in which actors may reconnect.
        hold_s: Seconds without an answer for which the number stays.
        clock: The time, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[], LearnerStatus],
        rules: ScalingRules,
        *,
        window_s: float,
        hold_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._rules = rules
        self._hold_s = hold_s
        self._clock = clock
        self._window_s = window_s
        self._window = WaitWindow(window_s)
        self._controller: ScalingController | None = None
        # the time of the first answer without a controller; None: there was none
        self._began_at: float | None = None
        self._withheld = False
        self._changed = threading.Condition()  # guards the three below
        self._wanted: int | None = None
        self._answered_at = 0.0
        self._error: RollcastError | None = None

    def look(self) -> None:
        """Asks the learner once, and decides if the window is full."""
        try:
            status = self._ask()
        except RollcastError as error:
            self._note_error(error)
            return
        wanted = self._decide(status)
        with self._changed:
            if self._error is not None:
                logger.info("the learner answers again")
            self._error, self._answered_at = None, self._clock()
            if wanted != self._wanted:
                self._wanted = wanted
                self._changed.notify_all()

    def run(self, stop: threading.Event, interval_s: float) -> None:
        """Calls `look` every `interval_s` until `stop` is set."""
        while not stop.is_set():
            self.look()
            stop.wait(interval_s)

    def wanted(self) -> int:
        """Returns how many actors the learner wants; 0 once training has ended.

        Raises:
            NotReadyError: The learner has not answered yet, or not for `hold_s`; or its actors may still reconnect.
            UnauthenticatedError: The learner does not know the token.
            PermissionDeniedError: The token's role may not read the status.
        """
        with self._changed:
            return self._current()

    def wait_for_change(self, wanted: int, timeout_s: float) -> None:
        """Waits until the number differs from `wanted`, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted != wanted, timeout_s)

    def _current(self) -> int:
        error, wanted = self._error, self._wanted
        if error is None:
            if wanted is None and self._began_at is None:
                raise NotReadyError("the learner has not been asked yet; expected its status; ask again in a second")
            if wanted is None:
                raise NotReadyError(
                    f"the learner has answered for less than {self._window_s:g} s; expected a whole window, in which "
                    "its actors may reconnect; ask again in a second"
                )
            return wanted
        if isinstance(error, _REFUSALS):
            raise type(error)(
                f"the learner refuses to send its status to this scaler: {error}; expected a token of the role "
                "viewer; give the scaler another --token-file"
            )
        if wanted == 0:  # it has ended, and then gone
            return 0
        silent_s = self._clock() - self._answered_at
        if wanted is None or silent_s > self._hold_s:
            since = "has not answered yet" if wanted is None else f"has not answered for {silent_s:.0f} s"
            raise NotReadyError(
                f"the learner {since}: {error}; expected its status; start it again, or correct --learner-address"
            )
        return wanted

    def _note_error(self, error: RollcastError) -> None:
        self._window.clear()
        self._began_at = None
        with self._changed:
            if self._error is None or type(error) is not type(self._error):
                logger.warning("no status from the learner: %s", error)
            self._error = error

    def _decide(self, status: LearnerStatus) -> int | None:
        """Returns the wanted number; None: it is not known yet."""
        if status.phase is Phase.FINISHED:
            if self._controller is not None or self._wanted is None:
                logger.info("training has ended: 0 actors")
            self._controller = self._began_at = None
            self._window.clear()
            return 0
        now = self._clock()
        if self._controller is None:
            if self._began_at is None:
                self._began_at = now
            if now - self._began_at < self._window_s:
                return None
            if status.phase is Phase.STARTING:
                return min(max(status.actors_alive, self._rules.min_actors), self._rules.max_actors)
            self._controller = ScalingController(self._rules, status.actors_alive)
            logger.info("%d actors at first: %s", self._controller.wanted, self._controller.reason)
        controller = self._controller
        if not controller.has(status.actors_alive) or status.phase is not Phase.TRAINING:
            self._window.clear()
            return controller.wanted
        self._window.add(status, now)
        waits = self._window.waits()
        if waits is not None:
            self._step(controller, waits, now)
        return controller.wanted

    def _step(self, controller: ScalingController, waits: Waits, now: float) -> None:
        before = controller.wanted
        if controller.decide(waits, now):
            if controller.wanted != before:
                logger.info("%d actors instead of %d: %s", controller.wanted, before, controller.reason)
            self._window.clear()
        elif controller.withheld and not self._withheld:
            logger.info("still %d actors: %s", before, controller.withheld)
        self._withheld = bool(controller.withheld)

    def collect(self) -> Families:
        """Returns the metrics of the scaler, for Prometheus."""
        with self._changed:
            families = Families()
            families.gauge("scaler_learner_answers", "1 while the learner answers the scaler", self._error is None)
            with contextlib.suppress(RollcastError):  # KEDA gets the reason
                families.gauge("scaler_wanted_actors", "actors that the learner wants", self._current())
        return families
