"""Defines the base class of connections to a learner: joining, rejoining after every loss, and errors."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Self, TypedDict

from rollcast.actor.connection.ending import Ending
from rollcast.actor.connection.joining import Joining
from rollcast.actor.connection.reconnects import Reconnects
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, RollcastError, TrainingEndedError
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.policies.encodings import PolicyEncoding
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.status.numbers import limit

logger = logging.getLogger(__name__)


class ConnectionOptions(TypedDict, total=False):
    """The optional arguments of a `Connection`."""

    security: ClientSecurity
    connect_timeout_s: float
    reconnect_timeout_s: float
    stop: threading.Event | None
    on_attempt: Callable[[], None]
    encodings: Collection[PolicyEncoding]
    is_child: bool


class Connection(ABC):
    """The connection of a process to one learner, across reconnects.

    `join` starts the threads of the subclass. These threads read the streams and reopen lost streams.

    Args:
        address: The learner, `host:port`, `unix:/path` or `file:/path`; or several addresses, see `Joining`.
        offer: The name, environments and network to join with.
        security: Certificates and token; their files are read again at every reconnect.
        connect_timeout_s: The longest duration of the first join, in seconds.
        reconnect_timeout_s: The time for which to try to reach a lost learner again, in seconds.
        stop: Ends every wait for the learner.
        on_attempt: Called before each attempt of `join`, by the thread that calls `join`.
        encodings: The encodings of policies that this process accepts, besides whole files.
        is_child: True: the learner has started this process. Messages then omit options and signals.
    """

    def __init__(
        self,
        address: str,
        offer: JoinOffer,
        *,
        security: ClientSecurity = PLAIN_CLIENT,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 600.0,
        stop: threading.Event | None = None,
        on_attempt: Callable[[], None] = lambda: None,
        encodings: Collection[PolicyEncoding] = (),
        is_child: bool = False,
    ) -> None:
        self._encodings = encodings
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._reconnect_advice = "" if is_child else " (--reconnect-timeout-s); Ctrl-C or SIGTERM ends the actor"
        self._on_attempt = on_attempt
        self._ending = Ending(stop)
        self._joining = Joining(address, offer, security=security, ending=self._ending)
        self._threads: list[threading.Thread] = []
        # Guards everything below, and what subclasses add.
        self._changed = threading.Condition()
        self._client: LearnerClient | None = None
        self._ended = False
        self._error: RollcastError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the streams and ends the threads. Idempotent."""

    @property
    def ended(self) -> bool:
        """True if the learner has reported that training has ended."""
        with self._changed:
            return self._ended

    @property
    def agreement(self) -> JoinAgreement:
        """The newest agreement. Call `join` first."""
        return self._joining.agreement

    def join(self) -> JoinAgreement:
        """Joins, opens the streams and returns the agreed work.

        Raises:
            LearnerUnreachableError: No learner answered within `connect_timeout_s`.
            TrainingEndedError: Training has ended. `ended` is now True.
            RollcastError: The learner refused this process, and trying again will not help.
        """
        try:
            is_joined = self._join_learner(self._connect_timeout_s, self._on_attempt)
        except TrainingEndedError:
            self._end()
            raise
        if not is_joined:
            raise LearnerUnreachableError(f"no learner had answered at {self._address}")
        for name, keep in self._loops().items():
            thread = threading.Thread(target=self._guard, args=(keep,), name=f"rollcast-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self.agreement

    @abstractmethod
    def _loops(self) -> Mapping[str, Callable[[], None]]:
        """Returns the loops of the threads, by thread name."""

    @abstractmethod
    def _follow(self, client: LearnerClient, agreement: JoinAgreement) -> None:
        """Moves the streams to the client that has joined. Called with the lock held."""

    def _acknowledged(self) -> int:
        """Returns the last rollout that the learner has acknowledged. Called with the lock held."""
        return 0

    def _keep_stream(self, read: Callable[[Reconnects], None]) -> None:
        """Runs a stream until it ends, and joins the learner again after every loss.

        Args:
            read: Opens the stream and reads it until training has ended, or the connection is closed.
        """
        reconnects = Reconnects()
        while not self._ending.closing.is_set():
            opened = time.monotonic()
            try:
                read(reconnects)
            except RollcastError as error:
                with self._changed:
                    # When training has ended, the learner breaks the stream of an actor that is in a long step.
                    if self._is_over():
                        return
                delay_s = reconnects.delay_after(error, lasted_s=time.monotonic() - opened)
                logger.warning(
                    "lost the learner at %s: %s; reconnecting %s%s",
                    self._joining.place,
                    error,
                    limit(self._reconnect_timeout_s),
                    self._reconnect_advice,
                )
            else:
                return
            self._ending.wait(delay_s)
            try:
                if not self._join_learner(self._reconnect_timeout_s):
                    return
            except TrainingEndedError:
                self._end()
                return
            logger.info("reconnected to the learner at %s", self._address)

    def _join_learner(self, timeout_s: float, on_attempt: Callable[[], None] = lambda: None) -> bool:
        """Joins, and moves the streams to the new client; returns False if the connection has ended."""
        with self._changed:
            acknowledged = self._acknowledged()
        client = self._joining.join(acknowledged, timeout_s, on_attempt=on_attempt)
        if client is None:
            return False
        with self._changed:
            old_client, self._client = self._client, client
            self._follow(client, self.agreement)
            self._changed.notify_all()
        if old_client is not None:
            old_client.close()
        return True

    def _guard(self, keep: Callable[[], None]) -> None:
        """Runs a thread's loop; passes an error that ends it to the thread that called `join`."""
        try:
            keep()
        except RollcastError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("the connection to %s failed", self._address)
            self._give_up(RollcastError(f"the connection to {self._address} failed: {error!r}"))
            raise

    def _is_over(self) -> bool:
        """Returns True if the connection expects no more messages from the learner. Called with the lock held."""
        return self._ended or self._error is not None or self._ending.is_set()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _give_up(self, error: RollcastError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
