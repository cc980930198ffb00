"""Follows a learner in a thread: asks for its history, connects again after every loss, and keeps a view of the run."""

import contextlib
import dataclasses
import logging
import threading
import time
from typing import Final, NamedTuple

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    LearnerUnreachableError,
    NotReadyError,
    PermissionDeniedError,
    ProtocolMismatchError,
    RollcastError,
    UnauthenticatedError,
    message_of,
)
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.status.numbers import period
from rollcast.services.status.status import Phase
from rollcast.services.version import software_version
from rollcast.tools.watching.run_view import RunView

_log = logging.getLogger(__name__)

# The longest time between two attempts in seconds, also for a learner that has ended, is too old or refuses the token.
_LONGEST_WAIT_S: Final = 5.0
# Updates count as late after this many seconds, and this many intervals.
_LATE_S: Final = 5.0
_LATE_INTERVALS: Final = 3.0
_JOIN_TIMEOUT_S: Final = 5.0


class Snapshot(NamedTuple):
    """The state of a follower at one moment.

    Attributes:
        view: A copy of the view, which never changes.
        problem: The reason for missing updates, and what to do; None: updates arrive. The text may come from the
            learner.
        version: Grows with every change of the view or the problem, except when updates become late.
    """

    view: RunView
    problem: str | None
    version: int


class Follower:
    """Follows one learner in its own thread until `close`. Thread-safe.

    The follower reconnects with backoff until `close`. So it finds a restarted learner, and reads corrected token and
    address files.

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        security: Certificates and token.
        interval_s: Seconds between two updates, 0.1 to 3600.
        timeout_s: Seconds to wait for the answer of a call that is not a stream.
    """

    def __init__(
        self,
        address: str,
        *,
        security: ClientSecurity = PLAIN_CLIENT,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
    ) -> None:
        self.address = address
        self._security = security
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._changed = threading.Condition()  # guards all below
        self._view = RunView()
        self._problem: str | None = None
        self._error: RollcastError | None = None
        self._version = 0
        self._heard_at: float | None = None
        self._client: LearnerClient | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rollcast-follower", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream and joins the thread. Idempotent."""
        with self._changed:
            self._closed = True
            client = self._client
            self._changed.notify_all()
        if client is not None:
            client.close()
        self._thread.join(_JOIN_TIMEOUT_S)

    def snapshot(self) -> Snapshot:
        """Returns a copy of the view, and the problem if there is one."""
        with self._changed:
            return Snapshot(self._view.copy(), self._problem or self._lateness(), self._version)

    def wait(self, after_version: int, timeout_s: float) -> bool:
        """Waits until something has changed.

        Args:
            after_version: The version of a snapshot; -1: returns at once.
            timeout_s: Seconds to wait at most.

        Returns:
            False if nothing has changed.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._version > after_version or self._closed, timeout_s)

    def wait_for_first(self, timeout_s: float) -> Snapshot:
        """Waits for the first update.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            A snapshot; without an update, but with a problem, if the learner is starting.

        Raises:
            RollcastError: The learner refuses the call, is too old for it, or does not answer in time.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._view.now_s is not None or self._is_refused() or self._closed, timeout_s
            )
            if self._view.now_s is None and self._error is None:
                raise LearnerUnreachableError(
                    f"the learner at {self.address} did not answer within {period(timeout_s)}; expected an answer; "
                    "check that it runs and is not overloaded, that no firewall blocks its port, or give a longer "
                    "timeout"
                )
            if self._view.now_s is None and self._error is not None and self._is_refused():
                raise type(self._error)(self._problem)
        return self.snapshot()

    def _is_refused(self) -> bool:
        return self._error is not None and not isinstance(self._error, NotReadyError)

    def _lateness(self) -> str | None:
        status = self._view.status
        if self._heard_at is None or status is None or status.phase is Phase.FINISHED:
            return None
        late_s = time.monotonic() - self._heard_at
        if late_s <= max(_LATE_S, _LATE_INTERVALS * self._interval_s):
            return None
        return f"the learner at {self.address} has sent no status for {period(late_s)}; it or the network is stuck"

    def _run(self) -> None:
        delays = backoff_delays(longest_s=_LONGEST_WAIT_S)
        while not self._closed:
            try:
                if self._follow():
                    delays = backoff_delays(longest_s=_LONGEST_WAIT_S)
            except RollcastError as error:
                self._set_problem(error)
            with self._changed:
                finished = self._view.status is not None and self._view.status.phase is Phase.FINISHED
                self._changed.wait_for(lambda: self._closed, _LONGEST_WAIT_S if finished else next(delays))

    def _follow(self) -> bool:
        """Follows one stream to its end; returns whether an update came."""
        with contextlib.ExitStack() as stack:
            # Made anew each time, because files with addresses, tokens and certificates may have changed.
            client = stack.enter_context(
                LearnerClient(self.address, timeout_s=self._timeout_s, security=self._security)
            )
            with self._changed:
                if self._closed:
                    return False
                self._client = client
            came = False
            try:
                for update in client.watch_history(self._interval_s):
                    came = True
                    with self._changed:
                        self._view.apply(update)
                        self._problem, self._error = None, None
                        self._heard_at = time.monotonic()
                        self._bump()
            except ProtocolMismatchError as error:
                raise ProtocolMismatchError(self._explain_unknown_call(client)) from error
            except RollcastError as error:
                if not came:
                    raise
                self._set_problem(error)
            return came

    def _set_problem(self, error: RollcastError) -> None:
        with self._changed:
            if self._closed or self._is_at_end(error):
                return
            problem = _explain(error, self.address)
            if problem != self._problem:
                _log.debug("%s", problem)
            self._problem, self._error = problem, error
            self._bump()

    def _is_at_end(self, error: RollcastError) -> bool:
        """Returns whether an error only means the end of training; sets the phase if the learner could not send it."""
        status = self._view.status
        if status is None or status.phase not in (Phase.STOPPING, Phase.FINISHED):
            return False
        if isinstance(error, LearnerUnreachableError) and status.phase is Phase.STOPPING:
            # The learner has closed before it could send the phase.
            self._view.status = dataclasses.replace(status, phase=Phase.FINISHED)
            self._bump()
        return isinstance(error, LearnerUnreachableError | NotReadyError)

    def _explain_unknown_call(self, client: LearnerClient) -> str:
        """Returns why a learner does not know the call."""
        version = ""
        with contextlib.suppress(RollcastError):
            version = client.status().software_version
        own = software_version()
        if version == own:
            return f"the learner at {self.address} keeps no history; expected one of `rollcast learner` or `train`"
        return (
            f"the learner at {self.address} runs rollcast {version or '(unknown)'}, which sends no history; expected "
            f"{own} or later, as here; update it, or use `rollcast status`"
        )

    def _bump(self) -> None:
        self._version += 1
        self._changed.notify_all()


def _explain(error: RollcastError, address: str) -> str:
    text = message_of(error)
    if isinstance(error, UnauthenticatedError):
        return f"the learner at {address} refuses the token: {text}"
    if isinstance(error, PermissionDeniedError):
        return f"the token may not watch the run at {address}; expected one of role viewer or operator: {text}"
    return text
