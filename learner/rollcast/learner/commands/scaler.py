"""`rollcast scaler`: tells KEDA how many actors a learner wants."""

import logging
import signal
import threading

from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.scaling.scaler import Scaler
from rollcast.learner.settings.scaler import ScalerSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.server.scaler import make_scaler_server

logger = logging.getLogger(__name__)


def scaler(settings: ScalerSettings) -> int:
    """Watches the learner and serves until SIGTERM or Ctrl-C; returns the exit code: 0, or 130 after Ctrl-C.

    A learner that cannot be reached is no error: it may come, or come again.

    Raises:
        ConfigurationError: Certificates or the token cannot be used, or the address is malformed.
        AddressInUseError: Another server has the address.
    """
    stop = threading.Event()
    with (
        stop_on_signals(stop.set) as received,
        LearnerClient(
            settings.learner_address, timeout_s=settings.timeout_s, security=settings.client_security()
        ) as client,
    ):
        watched = Scaler(client.status, settings.rules(), window_s=settings.window_s, hold_s=settings.hold_s)
        server = make_scaler_server(settings.address, watched, security=settings.server_security())
        server.start()
        try:
            logger.info("telling KEDA at %s how many actors %s wants", server.address, settings.learner_address)
            watched.run(stop, settings.interval_s)
        finally:
            server.stop()
    return 130 if signal.SIGINT in received else 0
