"""Runs the dashboard of a run as a child process of its learner. The child always ends with the learner."""

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Final, Self

from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import AddressInUseError, ConfigurationError, RollcastError, message_of
from rollcast.services.process.child_lines import ChildLines, write_to_parent
from rollcast.services.process.installation import require_extra
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.process.printable import log_to_stderr
from rollcast.services.process.socket_paths import short_temporary_paths
from rollcast.services.process.stop_signals import ignore_terminal
from rollcast.services.security.security import PLAIN_CLIENT
from rollcast.tools.dashboard.settings import check_page_address

# Seconds within which the child has to serve. It imports many modules at a low priority.
_START_TIMEOUT_S: Final = 60.0
# Seconds that the child may take to end after SIGTERM, or after its parent has died.
_STOP_TIMEOUT_S: Final = 3.0
# Training has priority over the page where both need the same core: this niceness leaves the page a tenth.
_NICE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDashboardPlan:
    """The arguments of the child.

    Attributes:
        learner_address: The learner's unix socket.
        listen_address: "host:port" of the page; port 0: any free one.
        read_only: True: the page has no buttons.
        timeout_s: Seconds to wait for the learner's answer.
        log_level: The lowest level that the child logs to stderr.
    """

    learner_address: str
    listen_address: str
    read_only: bool
    timeout_s: float = 5.0
    log_level: str = "WARNING"


class LocalDashboard:
    """The child process: a context manager that starts and ends it.

    Args:
        plan: The child's arguments.
    """

    def __init__(self, plan: LocalDashboardPlan) -> None:
        self.learner_address = plan.learner_address
        self._plan = plan
        self._lines = ChildLines()

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run_dashboard,
            args=(self._plan, self._sender, self._lines.sender()),
            name="rollcast-dashboard",
            daemon=True,
        )
        with interrupts_held_back():
            self._process.start()
        self._sender.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join(_STOP_TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(_STOP_TIMEOUT_S)
        self._process.close()
        self._receiver.close()
        self._lines.close()

    def link(self) -> str:
        """Waits until the page is served, and returns its link.

        Raises:
            AddressInUseError: Another server has the address.
            ConfigurationError: The page cannot be served at the address.
            RollcastError: The child has ended, or does not serve in time.
        """
        try:
            if not self._receiver.poll(_START_TIMEOUT_S):
                raise RollcastError(
                    f"the dashboard does not serve after {_START_TIMEOUT_S:.0f} s; expected a few seconds; train "
                    "without --dashboard, and start `rollcast dashboard` separately"
                )
            told: Mapping[str, Any] = json.loads(self._receiver.recv_bytes())
        except EOFError as error:
            raise RollcastError(
                "the dashboard's process has ended; expected it to serve; its messages are above"
            ) from error
        if "url" in told:
            return str(told["url"])
        errors = {kind.__name__: kind for kind in (AddressInUseError, ConfigurationError)}
        raise errors.get(told["kind"], RollcastError)(told["message"])


@contextlib.contextmanager
def dashboard_beside(settings: TrainSettings) -> Iterator[LocalDashboard]:
    """Runs the page of `rollcast train --dashboard` until the end of the block.

    Raises:
        ConfigurationError: The run cannot have a page with these settings.
    """
    with short_temporary_paths():
        sockets = tempfile.TemporaryDirectory(prefix="rollcast-")
    with sockets as folder, LocalDashboard(_plan(settings, f"unix:{folder}/learner.sock")) as dashboard:
        yield dashboard


def _plan(settings: TrainSettings, learner_address: str) -> LocalDashboardPlan:
    """Returns the arguments of the run's dashboard.

    Raises:
        ConfigurationError: The run cannot have a dashboard with these settings.
    """
    require_extra("dashboard", "--dashboard")
    if settings.actor_kind == "sequential":
        raise ConfigurationError(
            "dashboard is set, and actor_kind is 'sequential', which has no server for a page; expected 'subprocess'; "
            "remove one of the two"
        )
    check_page_address(settings.dashboard_address, insecure=settings.insecure)
    return LocalDashboardPlan(
        learner_address=learner_address,
        listen_address=settings.dashboard_address,
        # The socket asks for no token, and anyone on this machine may open the page.
        read_only=settings.tokens_file is not None,
        log_level=settings.log_level,
    )


def _run_dashboard(plan: LocalDashboardPlan, parent: Connection, stderr: Connection | None) -> None:
    """Serves the page in the child; sends the parent `{url}`, or `{kind, message}` of an error."""
    if stderr is not None:
        write_to_parent(stderr)
    # The learner decides when its page ends.
    ignore_terminal()
    os.nice(_NICE)
    log_to_stderr(plan.log_level, name="dashboard")
    from rollcast.tools.dashboard.server import DashboardServer
    from rollcast.tools.dashboard.watched import Watched

    watched = Watched(plan.learner_address, security=PLAIN_CLIENT, timeout_s=plan.timeout_s, read_only=plan.read_only)
    try:
        server = DashboardServer([watched], plan.listen_address)
        signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        threading.Thread(
            target=_end_with_parent, args=(server.stop,), name="rollcast-orphan-watch", daemon=True
        ).start()
        server.run(lambda: parent.send_bytes(json.dumps({"url": server.url}).encode()))
    except RollcastError as error:
        parent.send_bytes(json.dumps({"kind": type(error).__name__, "message": message_of(error)}).encode())
    finally:
        watched.close()
        parent.close()


def _end_with_parent(stop: Callable[[], None]) -> None:
    """Thread: ends this process when the learner's process has ended."""
    learner = multiprocessing.parent_process()
    if learner is None:
        return
    wait([learner.sentinel])
    stop()
    watchdog = threading.Timer(_STOP_TIMEOUT_S, os._exit, args=(1,))
    watchdog.daemon = True
    watchdog.start()
