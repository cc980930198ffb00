"""`rollcast scaler`: tells KEDA how many actors a learner wants."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from typing import IO

from rollcast.learner.commands.signals import stop_on_signals
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, RollcastError
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.process.stop_signals import safe_in_handlers
from rollcast.services.scaling.bounds import ActorBounds
from rollcast.services.server.scaler import make_scaler_server
from rollcast.services.status.status import LearnerStatus
from rollcast.tools.scaling.scaler import Scaler
from rollcast.tools.scaling.settings import ScalerSettings

logger = logging.getLogger(__name__)


def scaler(settings: ScalerSettings, output: IO[str]) -> int:
    """Watches the learner and serves until SIGTERM or Ctrl-C; returns the exit code: 0, or 130 after Ctrl-C.

    If the learner is unreachable, the scaler continues to ask it.

    Raises:
        ConfigurationError: Certificates or the token cannot be used, or the address is malformed.
        AddressInUseError: Another server has the address.
    """
    del output  # it logs
    stop = threading.Event()
    with (
        safe_in_handlers(stop.set) as set_stop,
        stop_on_signals(set_stop) as received,
        contextlib.closing(_Question(settings)) as question,
    ):
        # A learner that does not answer yet is asked again every `interval_s`.
        with contextlib.suppress(LearnerUnreachableError):
            question.connect()
        watched = Scaler(question, settings.rules(), window_s=settings.window_s, hold_s=settings.hold_s)
        server = make_scaler_server(
            settings.address,
            watched,
            bounds=ActorBounds(fewest=settings.min_actors, most=settings.max_actors),
            security=settings.server_security(),
        )
        server.start()
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            stack.enter_context(served_metrics(settings.metrics_address, watched.collect, logger.info))
            logger.info("telling KEDA at %s how many actors %s wants", server.address, settings.learner_address)
            watched.run(stop, settings.interval_s)
    return 130 if signal.SIGINT in received else 0


class _Question:
    """Asks the learner for its status, with a new connection after each error.

    A connection keeps the certificates, the token, and the address in `file:/path`, as they were when it was made. Used
    by one thread.
    """

    def __init__(self, settings: ScalerSettings) -> None:
        self._connect: Callable[[], LearnerClient] = lambda: LearnerClient(
            settings.learner_address, timeout_s=settings.timeout_s, security=settings.client_security()
        )
        self._client: LearnerClient | None = None

    def __call__(self) -> LearnerStatus:
        try:
            return self.connect().status()
        except RollcastError:
            self.close()
            raise

    def connect(self) -> LearnerClient:
        """Returns the connection; makes one if there is none.

        Raises:
            ConfigurationError: The address is malformed, or certificates or the token cannot be used.
            LearnerUnreachableError: The file with the address does not exist.
        """
        if self._client is None:
            self._client = self._connect()
        return self._client

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None
