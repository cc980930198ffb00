"""Watches one learner for the page: its history, and the rights of the page's token."""

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.security.security import ClientSecurity
from rollcast.tools.watching.follower import Follower, Snapshot

# Seconds between two updates of the learner.
UPDATE_S: Final = 1.0

_T = TypeVar("_T")


class Watched:
    """A learner that pages show. Thread-safe.

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        security: Certificates and token.
        timeout_s: Seconds to wait for the answer of a call.
        read_only: True: operators get no buttons either.
    """

    def __init__(self, address: str, *, security: ClientSecurity, timeout_s: float, read_only: bool) -> None:
        self.address = address
        # A wrong address is an error of the settings, not of the learner.
        LearnerClient(address, timeout_s=timeout_s, security=security).close()
        self._security = security
        self._timeout_s = timeout_s
        self._read_only = read_only
        self._follower = Follower(address, security=security, interval_s=UPDATE_S, timeout_s=timeout_s)
        self._may_operate = False

    @property
    def may_operate(self) -> bool:
        """True if operators' buttons are shown; as of the last `ask_role`."""
        return self._may_operate

    def snapshot(self) -> Snapshot:
        """Returns the newest state of the run."""
        return self._follower.snapshot()

    def ask_role(self) -> None:
        """Asks the learner for the token's role, and waits for the answer. Without an answer, changes nothing."""
        if not self._read_only:
            with contextlib.suppress(RollcastError):  # the page shows why the learner does not answer
                self._may_operate = self.call(LearnerClient.may_operate)

    def call(self, method: Callable[[LearnerClient], _T]) -> _T:
        """Makes a call over a new connection, for which token and certificate files are read again.

        Args:
            method: Makes the call.

        Raises:
            RollcastError: The learner refuses, or does not answer.
        """
        with LearnerClient(self.address, timeout_s=self._timeout_s, security=self._security) as client:
            return method(client)

    def close(self) -> None:
        """Ends watching."""
        self._follower.close()
