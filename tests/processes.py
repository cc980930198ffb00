"""Running rollcast's commands as a user does, and waiting on states with deadlines."""

import atexit
import contextlib
import functools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.status.status import LearnerStatus, Phase
from tests.zygote import ForkedProcess, Zygote

ROOT = Path(__file__).resolve().parent.parent
# the four source roots of the namespace package `rollcast`
SOURCE_ROOTS = tuple(ROOT / name for name in ("proto", "services", "actor", "learner"))

# The variable with the place of the warm process, where the processes of a run of pytest share one.
SHARED_ZYGOTE = "TEST_ZYGOTE"

# No state that a test waits for takes a quarter of it on a machine of two cores with other work.
DEADLINE_S = 120.0


def wait_until(
    condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S, *, every_s: float = 0.1
) -> None:
    """Waits on a state; fails with its name when the deadline has passed.

    Looks often at first, then this often: to ask a server fifty times a second takes a tenth of a core.
    """
    deadline, pause_s = time.monotonic() + timeout_s, min(0.01, every_s)
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        threading.Event().wait(pause_s)
        pause_s = min(1.3 * pause_s, every_s)


def environment() -> dict[str, str]:
    """This process's environment, with the project importable and none of rollcast's own variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROLLCAST_")}
    return inherited | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *SOURCE_ROOTS))), "COLUMNS": "120"}


@functools.cache
def zygote() -> Zygote:
    """The warm process that forks the commands of this test process, or of all that share the tests of a run."""
    shared = os.environ.get(SHARED_ZYGOTE)
    return Zygote.of(shared) if shared else Zygote.started(environment())


def rollcast(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return _to_the_end(_start("rollcast.learner", arguments, variables, merge_errors=False))


def _to_the_end(process: ForkedProcess, within_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    try:
        stdout, stderr = process.communicate(within_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def script(path: Path, *arguments: object, cwd: Path, within_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Runs a Python script to its end."""
    process = zygote().fork(
        str(path), list(map(str, arguments)), cwd=cwd, environment=environment(), merge_errors=False, is_script=True
    )
    return _to_the_end(process, within_s)


def completed(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that ends well."""
    done = rollcast(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done


def refused(*arguments: object, code: int = 2, **variables: str) -> str:
    """Runs a command that ends with an error in words, and returns what it says."""
    done = rollcast(*arguments, **variables)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return done.stderr


@contextlib.contextmanager
def running(*arguments: object, **variables: str) -> Iterator[ForkedProcess]:
    """Runs a command in the background, and kills what is left of it, children included.

    If the test fails, pytest shows what the command said and the test did not read: it may be the reason.
    """
    process = _start(f"rollcast.{arguments[0]}", arguments[1:], variables, merge_errors=True)
    try:
        yield process
    except BaseException:
        print(f"rollcast {arguments[0]} said:\n{_unread(process)}")  # noqa: T201
        raise
    finally:
        _kill(process)
        process.stdout.close()


def _unread(process: ForkedProcess) -> str:
    if process.stdout.closed:
        return ""
    said = b""
    os.set_blocking(process.stdout.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            said += piece
    return said.decode(errors="replace")


def ended(
    process: ForkedProcess | subprocess.Popen[str],
    number: signal.Signals | None = None,
    within_s: float = DEADLINE_S,
) -> int:
    """Waits for the end of a process, after a signal if one is given, and returns its exit code."""
    if number is not None:
        process.send_signal(number)
    return process.wait(within_s)


def status_of(learner: LearnerClient | str, security: ClientSecurity = PLAIN_CLIENT) -> LearnerStatus:
    """Asks a learner, by its client or its address; while none answers, the status is that of one that starts."""
    try:
        if isinstance(learner, LearnerClient):
            return learner.status()
        with LearnerClient(learner, timeout_s=5.0, security=security) as client:
            return client.status()
    except RollcastError:
        return LearnerStatus(phase=Phase.STARTING)


def is_alive(process: psutil.Process | int) -> bool:
    """Returns whether a process, or that of a number, runs; one that has ended and is not waited for does not."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(process: ForkedProcess) -> None:
    """Kills what is left of a command, with its children, which hold its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE_S)


def _start(module: str, arguments: Sequence[object], variables: dict[str, str], *, merge_errors: bool) -> ForkedProcess:
    return zygote().fork(
        module,
        [str(argument) for argument in arguments],
        cwd=ROOT,
        environment=environment() | variables,
        merge_errors=merge_errors,
    )


def zygote_process(module: str, *arguments: object, **variables: str) -> ForkedProcess:
    """Starts a module of tests; the caller ends it."""
    return _start(module, arguments, variables, merge_errors=True)


def descendants(process: ForkedProcess | subprocess.Popen[str]) -> list[psutil.Process]:
    """Every process below this one."""
    return psutil.Process(process.pid).children(recursive=True)


def free_port() -> int:
    """A port that is this process's until it ends: servers of its tests may listen there, one after the other."""
    return free_ports(1)


def free_ports(n: int) -> int:
    """The first of ports that follow each other; see `free_port`."""
    while True:
        held: list[socket.socket] = []
        with contextlib.suppress(OSError, OverflowError):
            held.append(_hold(0))
            first = int(held[0].getsockname()[1])
            held += [_hold(first + i) for i in range(1, n)]
            for port in held:
                _held_ports.enter_context(port)
            return first
        for port in held:
            port.close()


_held_ports = contextlib.ExitStack()
atexit.register(_held_ports.close)


def _hold(port: int) -> socket.socket:
    """Binds a socket that never listens: the system gives its port to nobody else, and connections are refused.

    Servers that set SO_REUSEADDR, as gRPC's and Python's do, may listen there all the same. It is set here only after
    the port is ours: else two processes could hold one port.
    """
    has_both = socket.has_dualstack_ipv6()
    holder = socket.socket(socket.AF_INET6 if has_both else socket.AF_INET)
    try:
        if has_both:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", port))
    except OSError:
        holder.close()
        raise
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder
