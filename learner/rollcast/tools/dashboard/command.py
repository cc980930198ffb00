"""`rollcast dashboard`: serves a web page that shows the state of learners and their actors."""

import contextlib
import signal
from typing import IO

from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.tools.dashboard.server import DashboardServer
from rollcast.tools.dashboard.settings import DashboardSettings
from rollcast.tools.dashboard.watched import Watched


def dashboard(settings: DashboardSettings, output: IO[str]) -> int:
    """Serves the page until SIGTERM or Ctrl-C; returns the exit code: 0, or 130 after Ctrl-C.

    If a learner is unreachable, the page shows this until the learner answers.

    Raises:
        ConfigurationError: An address is malformed or open to other machines, or certificates or the token cannot be
            used.
        AddressInUseError: Another server has the page's address.
    """
    settings.check_listen_address()
    security = settings.client_security()
    with contextlib.ExitStack() as at_the_end:
        learners = []
        for address in settings.learner_addresses():
            watched = Watched(address, security=security, timeout_s=settings.timeout_s, read_only=settings.read_only)
            at_the_end.callback(watched.close)
            learners.append(watched)
        server = DashboardServer(learners, settings.listen_address, host_names=settings.names())
        with stop_on_signals(server.stop) as received:
            server.run(lambda: print_line(output, f"the dashboard is at {server.url}"))
    return 130 if signal.SIGINT in received else 0
