"""`rollcast relay`: serves actors on behalf of a learner."""

import contextlib
import logging
import signal
from typing import IO

from rollcast.learner.commands.signals import stop_on_signals
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.policies.encodings import ENCODINGS
from rollcast.services.process.stop_signals import safe_in_handlers
from rollcast.tools.relay.relay import RollcastRelay
from rollcast.tools.relay.settings import RelaySettings

logger = logging.getLogger(__name__)


def relay(settings: RelaySettings, output: IO[str]) -> int:
    """Relays until training has ended, SIGTERM or Ctrl-C; returns the exit code: 0, or 130 after Ctrl-C.

    Raises:
        ConfigurationError: Certificates or tokens cannot be used, or an address is malformed.
        AddressInUseError: Another server has the address.
        RollcastError: The learner refused the relay, or was lost for good.
    """
    del output  # it logs
    relaying = RollcastRelay(
        settings.address,
        settings.learner_addresses(),
        settings.relay_id,
        limits=settings.server_limits(),
        server_security=settings.server_security(),
        client_security=settings.client_security(),
        announcement=settings.announcement(),
        encodings=ENCODINGS[settings.policy_encoding],
        wait_s=settings.bundle_wait_s,
        connect_timeout_s=settings.connect_timeout_s,
        reconnect_timeout_s=settings.reconnect_timeout_s,
    )
    with (
        safe_in_handlers(relaying.stop) as stop,
        stop_on_signals(stop) as received,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(relaying.close)
        relaying.start()
        stack.enter_context(served_metrics(settings.metrics_address, relaying.collect, logger.info))
        relaying.run(wait_for_next_run=settings.wait_for_next_run)
    return 130 if signal.SIGINT in received else 0
