"""The ingest processes of a learner: relays on its own machine, which it starts, watches and ends."""

import atexit
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollcast.learner.actors.supervision import ActorEnd, Supervision
from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.learner.serving.assignment import ActorLoad
from rollcast.services.address import (
    exclude_one_another,
    following_address,
    parse_listening_address,
    parse_web_address,
)
from rollcast.services.errors import (
    AddressInUseError,
    ConfigurationError,
    NotReadyError,
    RollcastError,
    message_of,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.join import ActorRole, JoinOffer
from rollcast.services.limits.limits import LONGEST_WAIT_S, Limits
from rollcast.services.process.child_lines import ChildLines, write_to_parent
from rollcast.services.process.interrupts import interrupts_held_back
from rollcast.services.process.printable import log_to_stderr
from rollcast.services.process.socket_paths import short_temporary_paths
from rollcast.services.process.stop_signals import ignore_terminal
from rollcast.services.rendezvous import advertised_address
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.binding import check_bindable
from rollcast.services.wire.allocator import reuse_large_buffers
from rollcast.tools.relay import link
from rollcast.tools.relay.relay import RollcastRelay

if TYPE_CHECKING:  # an ingest process has no settings of a learner
    from rollcast.learner.settings.learner import ServingSettings

logger = logging.getLogger(__name__)

# Seconds between two reports of a process.
_REPORT_S: Final = 0.5
# Seconds of silence after which no actor is redirected to a process, as it may be frozen, and after which it is killed.
_DOUBT_S: Final = 3.0
_SILENCE_S: Final = 10.0
# Seconds for which actors are asked to retry while a process starts, so that it gets its share of them, or while none
# serves. After that, the others take them, or the learner itself.
_PATIENCE_S: Final = 10.0
# Seconds within which a process has to serve, and that it may take to end.
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 8.0
_KILL_TIMEOUT_S: Final = 3.0
# Seconds between two checks of the processes while none reports.
_LOOK_S: Final = 0.25
# After a pause of the learner of this many seconds, such as Ctrl-Z, the processes may have been paused, too: their
# silence so far does not count.
_PAUSE_S: Final = 2.0
# Rollouts that arrive at the same time share a message; see `BundleLink`.
_BUNDLE_WAIT_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """The arguments of an ingest process.

    Attributes:
        name: The name of the process, which the learner shows beside the actors of the process.
        address: The address to listen at.
        learner_address: The learner's unix socket, the only file of its folder.
        security: The learner's arguments of `ServerSecurity.from_files`.
        limits: The learner's limits on the actors of the process.
        log_level: The lowest level that the process logs to stderr.
    """

    name: str
    address: str
    learner_address: str
    security: Mapping[str, Any]
    limits: Limits
    log_level: str


class _IngestProcess:
    """A process and its last report. The watching thread starts and ends it; any thread may read.

    Args:
        plan: Its arguments.
        advertised_host: The host at which other machines reach it; empty: see `advertised_address`.
    """

    def __init__(self, plan: IngestPlan, advertised_host: str, lines: ChildLines) -> None:
        self.actor_id: Final = plan.name
        self._plan = plan
        self._lines = lines
        self._advertised_host = advertised_host
        self._context = multiprocessing.get_context("spawn")
        self._reports: Connection | None = None
        self._process: BaseProcess | None = None
        self._heard_at = self._looked_at = 0.0
        self._load = ActorLoad()
        # The number of its actors; the address at which actors reach it, empty until it serves.
        self.n_actors = 0
        self.address = ""
        self._has_learner = False
        # The error with which it last ended; None once it serves again.
        self.error: RollcastError | None = None
        self.has_finished = False
        # The reason why it could not be started; None: it could.
        self._not_started: OSError | None = None

    @property
    def pid(self) -> int | None:
        """Its process id."""
        process = self._process
        return None if process is None else process.pid

    @property
    def reports(self) -> Connection | None:
        """The connection on which it reports."""
        return self._reports

    def launch(self) -> None:
        """Starts it. If that fails, for example for lack of memory, keeps the error for `take_end`."""
        try:
            self._launch()
        except OSError as error:
            self._not_started = error

    def _launch(self) -> None:
        own, its = self._context.Pipe()
        process = self._context.Process(
            target=_relay_until_stopped,
            args=(self._plan, its, self._lines.sender()),
            name=f"rollcast-{self.actor_id}",
            daemon=True,
        )
        with its, interrupts_held_back():
            process.start()
        self._process, self._reports = process, own
        self._heard_at = self._looked_at = time.monotonic()

    def take_end(self) -> ActorEnd | None:
        """Reads its reports, and returns its end, if it has ended; see `SupervisedActor`."""
        if self._not_started is not None:
            report, self._not_started = f"it cannot be started ({self._not_started})", None
            return ActorEnd(report)
        process, reports = self._process, self._reports
        if process is None or reports is None or self.has_finished:
            return None
        silent = self._read(reports)
        if process.exitcode is None and not silent:
            return None
        self.address = ""
        # Its actors return to the learner, those that have not arrived, too.
        self.n_actors, self._load = 0, ActorLoad()
        if silent:
            process.kill()
            process.join(_KILL_TIMEOUT_S)
        report = f"no sign of life for {_SILENCE_S:.0f} s" if silent else self._explain(process.exitcode or 0)
        self.has_finished = process.exitcode == 0
        self._process = self._reports = None
        reports.close()
        _free(process)
        # It exits with 0 once its learner has reported the end of training.
        return None if self.has_finished else ActorEnd(report)

    def load(self, now: float) -> int:
        """Returns the number of its actors, including redirected ones that have not arrived."""
        self._load.report(self.n_actors)
        return self._load.count(now)

    def send_one(self, now: float) -> str:
        """Records that an actor is redirected to it, and returns its address."""
        self._load.send(now)
        return self.address

    @property
    def is_starting(self) -> bool:
        """True until it serves for the first time after its start."""
        return not (self.address and self._has_learner)

    def may_serve(self, now: float) -> bool:
        """Returns whether it serves, according to its last report."""
        return bool(self.address) and self._has_learner and now - self._heard_at < _DOUBT_S

    def close(self) -> None:
        """Asks it to end. At the end of training, it first tells its actors."""
        if self._reports is not None:
            self._reports.close()

    def kill(self) -> None:
        """Kills it, if it runs."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ValueError):  # it has ended
                process.kill()

    def join(self, timeout_s: float) -> None:
        """Waits for its end, and kills it after `timeout_s`."""
        if self._process is None:
            return
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            if timeout_s:
                logger.warning("%s did not end within %.1f s; killing it", self.actor_id, timeout_s)
            self._process.kill()
            self._process.join(_KILL_TIMEOUT_S)
        _free(self._process)
        self._process = None

    def _read(self, reports: Connection) -> bool:
        """Reads its reports; returns whether it has been silent for too long."""
        with contextlib.suppress(EOFError, OSError):  # it has ended
            while reports.poll():
                self._take(json.loads(reports.recv_bytes()))
        # Reads the reports before it looks at the clock: this process itself may have been held up.
        now = time.monotonic()
        if now - self._looked_at > _PAUSE_S:
            self._heard_at = now
        self._looked_at = now
        return now - self._heard_at > (_SILENCE_S if self.address else _START_TIMEOUT_S)

    def _take(self, report: Mapping[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "error" in report:
            errors = {kind.__name__: kind for kind in (AddressInUseError, ConfigurationError)}
            self.error = errors.get(report["error"], RollcastError)(report["message"])
            return
        self.n_actors, self.error = int(report["n_actors"]), None
        self._has_learner = bool(report["has_learner"])
        self.address = advertised_address(str(report["address"]), self._advertised_host)

    def _explain(self, exit_code: int) -> str:
        if self.error is not None:
            return str(self.error)
        return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"


def _free(process: BaseProcess) -> None:
    """Frees the resources of an ended process; does nothing if even SIGKILL has not ended it."""
    if process.exitcode is not None:
        process.close()


class IngestProcesses:
    """The ingest processes to which a learner redirects its actors: an `ActorAssignment`. Thread-safe.

    When an actor joins, the learner redirects it to the process with the fewest actors. Evaluators, and actors that
    reach no process, stay at the learner. The learner restarts a process that dies or stays silent for 10 s. The actors
    of that process return to the learner, which redirects them again. While a process starts, actors wait for it for up
    to 10 s: otherwise all would join the others, and it would stay without any.

    Args:
        plans: One for each process.
        advertised_host: The host at which other machines reach the processes; empty: see `advertised_address`.
    """

    rank = 0
    n_ranks = 1

    def __init__(self, plans: list[IngestPlan], *, advertised_host: str = "") -> None:
        self._lines = ChildLines()
        self._processes = [_IngestProcess(plan, advertised_host, self._lines) for plan in plans]
        # Records the ends of processes as events of the run.
        self._note: NoteEvent = forget_event
        self._supervision = Supervision(self._processes, max_restarts=2**31, on_exit=self._note_exit)
        self._lock = threading.Lock()  # guards the processes' loads, and the time below
        # The time at which an actor was first asked to wait for processes; None: no process has to be waited for.
        self._waited_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rollcast-ingest-watch", daemon=True)

    @property
    def pids(self) -> list[int]:
        """The process ids of the running processes."""
        return [pid for process in self._processes if (pid := process.pid) is not None]

    def start(self) -> None:
        """Starts the processes, and a thread that watches them."""
        atexit.register(self._kill)  # registered after multiprocessing's own, and so called before it
        self._supervision.start()
        self._thread.start()

    def wait_until_served(self) -> tuple[str, ...]:
        """Waits until all processes serve, and returns their addresses; empty if `close` was called meanwhile.

        Raises:
            AddressInUseError: A program other than this learner uses an address.
            ConfigurationError: A process cannot listen at its address.
            RollcastError: A process cannot serve.
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        while late := [process for process in self._processes if not process.address]:
            for process in self._processes:
                if process.error is not None:
                    raise process.error
            if self._stop.wait(_LOOK_S / 5):
                return ()
            if time.monotonic() > deadline:
                raise RollcastError(
                    f"not serving after {_START_TIMEOUT_S:.0f} s: {', '.join(process.actor_id for process in late)}; "
                    "expected a few seconds; the log has their messages; train without --ingest-processes"
                )
        return tuple(process.address for process in self._processes)

    def elsewhere(self, offer: JoinOffer, n_taken: int) -> str | None:
        """Returns the address of the process that takes an actor; None: the learner takes it itself.

        Raises:
            NotReadyError: A process starts at this moment, or none serves.
        """
        del n_taken
        if offer.role is ActorRole.EVALUATE:
            return None
        now = time.monotonic()
        with self._lock:
            if self._has_to_wait(now):
                if self._waited_since is None:
                    self._waited_since = now
                if now - self._waited_since <= _PATIENCE_S:
                    raise NotReadyError("the learner's ingest processes are starting; try again with backoff")
            serving = [process for process in self._processes if process.may_serve(now)]
            return min(serving, key=lambda process: process.load(now)).send_one(now) if serving else None

    def _has_to_wait(self, now: float) -> bool:
        """Returns whether a process starts, which is to get its share of the actors, or none serves."""
        running = [process for process in self._processes if not process.has_finished]
        is_starting = any(process.is_starting for process in running)
        return bool(running) and (is_starting or not any(process.may_serve(now) for process in running))

    def took(self, name: str) -> None:
        """Does nothing, because there is only one learner."""

    def tell(self, note: NoteEvent) -> None:
        """Records the ends of processes as events from now on.

        Args:
            note: Records an event.
        """
        self._note = note

    def _note_exit(self, name: str, end: ActorEnd) -> None:
        self._note(EventSeverity.WARNING, f"ingest process ended: {end.report}; it is started again", who=name)

    def close(self, *, at_once: bool = False) -> None:
        """Ends the processes. Idempotent.

        Args:
            at_once: True: kills them without waiting.
        """
        self._stop.set()
        try:
            if self._thread.ident is not None:
                self._thread.join()
        finally:  # a second Ctrl-C may interrupt the wait; the processes then end by themselves
            for process in self._processes:
                process.close()
        deadline = time.monotonic() + (0.0 if at_once else _STOP_TIMEOUT_S)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._lines.close()
        atexit.unregister(self._kill)

    def _kill(self) -> None:
        """Kills those that an interrupted `close` has left: multiprocessing waits for them, and they ignore SIGTERM."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_KILL_TIMEOUT_S)
        for process in self._processes:
            process.kill()

    def _watch(self) -> None:
        while not self._stop.is_set():
            wait([process.reports for process in self._processes if process.reports is not None], _LOOK_S)
            self._supervision.look_after()
            with self._lock:
                if not self._has_to_wait(time.monotonic()):
                    self._waited_since = None
            # A process whose end is not noticed yet has a connection that is always readable.
            self._stop.wait(_LOOK_S / 5)


@contextlib.contextmanager
def ingest_processes(settings: "ServingSettings") -> Iterator[tuple[IngestProcesses, str]]:
    """Runs the ingest processes of `rollcast learner` until the end of the block.

    Yields:
        The processes, and the unix socket that the learner has to serve for them.

    Raises:
        ConfigurationError: A file or an address of the settings cannot be used.
    """
    # Refuses wrong files, and ports that are taken, before a process starts.
    settings.server_security()
    addresses = [
        following_address(settings.address, number, f"ingest process {number}")
        for number in range(1, settings.ingest_processes + 1)
    ]
    for number, address in enumerate(addresses, 1):
        where, metrics = parse_listening_address(address), settings.metrics_address
        if metrics is not None and exclude_one_another(where, parse_web_address(metrics)):
            raise ConfigurationError(
                f"--metrics-address: {metrics!r} is the address of ingest process {number}, as these processes use "
                "the ports after that of --address; expected another port; choose another --metrics-address"
            )
        check_bindable(where)
    with short_temporary_paths():
        sockets = tempfile.TemporaryDirectory(prefix="rollcast-")
    with sockets as folder:
        learner_address = f"unix:{folder}/learner.sock"
        processes = IngestProcesses(
            [
                IngestPlan(
                    name=f"ingest-{number}",
                    address=address,
                    learner_address=learner_address,
                    security=settings.security_files(),
                    limits=settings.server_limits(),
                    log_level=settings.log_level,
                )
                for number, address in enumerate(addresses, 1)
            ],
            advertised_host=settings.advertised_host,
        )
        at_once = True
        try:
            processes.start()
            yield processes, learner_address
            at_once = False
        finally:
            processes.close(at_once=at_once)


def _relay_until_stopped(plan: IngestPlan, parent: Connection, stderr: Connection | None) -> None:
    """Relays in the child; reports `{address, n_actors, has_learner}` periodically, or `{error, message}` once."""
    if stderr is not None:
        write_to_parent(stderr)
    # The learner decides when its processes end, even if all processes of a job get SIGTERM.
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log_to_stderr(plan.log_level, name=plan.name)
    # Logs no warning about the end of the learner, with which this process ends.
    logging.getLogger(link.__name__).setLevel(logging.ERROR)
    reuse_large_buffers()
    try:
        relay = RollcastRelay(
            plan.address,
            [plan.learner_address],
            plan.name,
            limits=plan.limits,
            server_security=ServerSecurity.from_files(**plan.security),
            wait_s=_BUNDLE_WAIT_S,
            # The learner is this process's parent, and ends it.
            connect_timeout_s=LONGEST_WAIT_S,
            reconnect_timeout_s=LONGEST_WAIT_S,
        )
        with contextlib.closing(relay):
            reporter = threading.Thread(target=_report, args=(plan, relay, parent), name="rollcast-report", daemon=True)
            socket = _socket_of(plan)

            def learner_is_up() -> bool:
                # The server has its port by now.
                if reporter.ident is None:
                    reporter.start()
                return socket.exists()

            relay.start(learner_is_up)
            relay.run()
    except RollcastError as error:
        told = {"error": type(error).__name__, "message": message_of(error)}
        with contextlib.suppress(OSError):  # the parent has ended
            parent.send_bytes(json.dumps(told).encode())
        raise SystemExit(1) from error


def _socket_of(plan: IngestPlan) -> Path:
    return Path(plan.learner_address.removeprefix("unix:"))


def _report(plan: IngestPlan, relay: RollcastRelay, parent: Connection) -> None:
    """Thread: reports to the parent, and ends this process when the parent ends or asks for it."""
    learner = multiprocessing.parent_process()
    assert learner is not None, "it is a child"
    ended: list[Any] = []
    has_learner = False
    while not ended:
        with contextlib.suppress(OSError):  # the parent has ended
            has_learner = relay.link.is_open
            told = {"address": relay.address, "n_actors": relay.intake.n_actors, "has_learner": has_learner}
            parent.send_bytes(json.dumps(told).encode())
        # The parent sends nothing. It closes the connection to ask for the end.
        ended = wait([parent, learner.sentinel], _REPORT_S if has_learner else _REPORT_S / 10)
    if learner.sentinel in ended:
        # A learner that was killed could not remove its socket.
        socket = _socket_of(plan)
        socket.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the last process to end removes it
            socket.parent.rmdir()
    if not relay.policies.ended:
        relay.stop()
    watchdog = threading.Timer(_STOP_TIMEOUT_S, os._exit, args=(1,))
    watchdog.daemon = True
    watchdog.start()
