"""A process that has imported rollcast already, and forks one process for each command that a test runs.

To import torch takes longer than most of these commands do; `tests.processes` asks this process for them. Tests that
need a fresh interpreter start one themselves: those of README's commands, of the wheel, and of Ctrl-C during imports.
`tests.shell` has commands that are typed run here as well.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import gc
import json
import multiprocessing.util
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

_IMPORTED_FIRST: Final = (
    "rollcast.tools.cli",
    "rollcast.learner.training.training_run",
    "rollcast.actor.acting.process",
    "rollcast.learner.commands.train",
    "rollcast.tools.dashboard.server",
    "rollcast.tools.training",
    "tests.warm_settings",
    # what a run imports when it is under way: the first optimiser, the first record, the server, an environment
    "torch._dynamo",
    "tensorboard.summary.writer.record_writer",
    "grpc_reflection.v1alpha.reflection",
    "gymnasium.envs.classic_control",
    "grpc._server",
    "numpy.ma",
    "rollcast.actor.policies.numpy_acting",
)
_ROOT: Final = str(Path(__file__).resolve().parent.parent)
_MAX_REQUEST_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None


def end_with_parent() -> None:
    """Has the system kill this process when the one that started it ends: a killed test run leaves no endless training.

    What the process has started itself ends with it, as after any kill.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ForkedProcess:
    """A process that runs a module or a script as `python` does: the part of `subprocess.Popen` that tests use.

    Attributes:
        pid: Its process id.
        args: The program and its arguments.
        stdout: What it prints, as text; None if the caller gave its outputs.
        stderr: Its errors, as text; None if they go to `stdout` as well.
        returncode: Its exit code, negative for a signal; None while it runs, or nobody has asked.
    """

    def __init__(self, args: Sequence[str], stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.pid = 0
        self.args = args
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._exit_code = 0

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        if self._ended.is_set():
            self.returncode = self._exit_code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, and returns the exit code."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        self.returncode = self._exit_code
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str | None]:
        """Waits for its end, and returns everything it has printed to `stdout` and `stderr`."""
        printed: dict[str, str] = {}
        pipes = {name: pipe for name, pipe in (("stdout", self.stdout), ("stderr", self.stderr)) if pipe is not None}
        readers = [
            threading.Thread(target=lambda name=name, pipe=pipe: printed.update({name: pipe.read()}), daemon=True)
            for name, pipe in pipes.items()
        ]
        deadline = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for pipe in pipes.values():
            pipe.close()
        return printed["stdout"], printed.get("stderr")

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            # between its end and the zygote's word of it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def has_started(self, pid: int) -> None:
        """Called by the zygote's reader."""
        self.pid = pid
        self._started.set()

    def has_ended(self, exit_code: int) -> None:
        """Called by the zygote's reader."""
        self._exit_code = exit_code
        self._ended.set()

    def await_start(self, zygote_ended: threading.Event) -> None:
        """Waits until the process exists.

        The test's own timeout is the limit: on a machine with much other work the zygote imports for minutes.
        """
        while not self._started.wait(_LOOK_S):
            assert not zygote_ended.is_set(), "the zygote has ended: did it print why?"


def _start(
    ends: Sequence[socket.socket], environment: Mapping[str, str], imported_first: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts a zygote that serves the other end of the first socket, and ends with it; it takes calls at the second."""
    numbers = [end.fileno() for end in ends]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", ",".join(map(str, numbers)), *imported_first],
        # a library with threads of its own cannot be forked
        env={**environment, "OMP_NUM_THREADS": "1"},
        cwd=_ROOT,
        pass_fds=numbers,
    )


def share(path: Path, environment: Mapping[str, str], imported_first: Sequence[str] = _IMPORTED_FIRST) -> None:
    """Lets other processes call one zygote at a path, by `Zygote.of`.

    It starts when the first process calls it, and ends with this process.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def start() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        select.select([listener], [], [])
        with listener, theirs:
            process = _start([theirs, listener], environment, imported_first)
        with ours:
            process.wait()

    threading.Thread(target=start, name="test-zygote", daemon=True).start()


class Zygote:
    """A connection to a warm process; what it has started ends with it.

    Args:
        channel: The connection.
        process: The warm process, if it is this one's child.
    """

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = channel
        self._process = process
        self._lock = threading.Lock()
        self._processes: dict[int, ForkedProcess] = {}
        self._n_asked = 0
        self._ended = threading.Event()
        threading.Thread(target=self._listen, name="test-zygote", daemon=True).start()

    @classmethod
    def started(cls, environment: Mapping[str, str], imported_first: Sequence[str] = _IMPORTED_FIRST) -> "Zygote":
        """Starts a warm process that ends with this one.

        Args:
            environment: Its variables.
            imported_first: The modules that its forks have already.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return cls(ours, _start([theirs], environment, imported_first))

    @classmethod
    def of(cls, path: str) -> "Zygote":
        """Connects to the warm process that another process shares."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.connect(path)
        return cls(channel)

    def fork(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        merge_errors: bool = False,
        outputs: Sequence[int] = (),
        is_script: bool = False,
    ) -> ForkedProcess:
        """Starts `python -m PROGRAM ARGUMENTS` in a session of its own; see `ForkedProcess`.

        Args:
            program: The module to run.
            arguments: Its arguments.
            cwd: The folder in which it runs.
            environment: All its variables.
            merge_errors: True: what it prints to stderr comes in `stdout`.
            outputs: Two descriptors to print to instead, and perhaps a third to read from. They stay the caller's.
            is_script: The program is a file: `python PROGRAM ARGUMENTS`.

        Raises:
            TypeError: A variable is not text.
        """
        if wrong := {name: value for name, value in environment.items() if not isinstance(value, str)}:
            raise TypeError(f"the environment has {wrong}; expected text: a keyword of a command is a variable")
        pipes = [] if outputs else [os.pipe() for _ in range(1 if merge_errors else 2)]
        ends = list(outputs) or [pipes[0][1], pipes[-1][1]]
        process = ForkedProcess([program, *arguments], *(os.fdopen(pipe, encoding="utf-8") for pipe, _ in pipes))
        with self._lock:
            self._n_asked += 1
            number = self._n_asked
            self._processes[number] = process
            request = _Request(number, program, is_script, list(arguments), str(cwd), dict(environment))
            with contextlib.suppress(OSError):  # the zygote has ended, which `await_start` says
                socket.send_fds(self._socket, [json.dumps(dataclasses.asdict(request)).encode()], ends)
        for _, end in pipes:
            os.close(end)
        process.await_start(self._ended)
        return process

    def _listen(self) -> None:
        """Passes on what the zygote and its children report."""
        # reset: it has ended before it took the call up
        with contextlib.suppress(ConnectionResetError):
            while report := self._socket.recv(1024):
                number, what, value = json.loads(report)
                if what == "pid":
                    self._processes[number].has_started(value)
                else:
                    self._processes.pop(number).has_ended(value)
        self._ended.set()


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    number: int
    program: str
    is_script: bool
    arguments: list[str]
    cwd: str
    environment: dict[str, str]


def _serve(owner: socket.socket, listener: socket.socket | None) -> tuple[_Request, list[int], socket.socket]:
    """Forks a process for each request until the owner is gone; returns in the forked processes only.

    Returns:
        The request, its descriptors, and the channel from which it came.
    """
    # a Ctrl-C in the tests' terminal is for the tests
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, tuple[socket.socket, int]] = {}
    with selectors.DefaultSelector() as selector:
        for source in (owner, woken, *filter(None, [listener])):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for source in [key.fileobj for key, _ in selector.select()]:
                if not isinstance(source, socket.socket):
                    os.read(woken, 4096)
                    _reap(running)
                elif source is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                elif forked := _answer(source, running, is_owner=source is owner):
                    signal.set_wakeup_fd(-1)
                    os.close(wake)
                    for key in selector.get_map().values():
                        if key.fileobj is not source:
                            os.close(key.fd)
                    return *forked, source
                elif source.fileno() == -1:
                    selector.unregister(source)


def _answer(
    channel: socket.socket, running: dict[int, tuple[socket.socket, int]], *, is_owner: bool
) -> tuple[_Request, list[int]] | None:
    """Reads from a channel and forks; returns what it has read in the forked process only."""
    try:
        message, fds, _, _ = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 3)
    except ConnectionResetError:  # it has ended, with a report that it did not read
        message, fds = b"", []
    if not message:
        if is_owner:
            os._exit(0)
        for pid, (other, _) in running.items():
            if other is channel:
                os.kill(pid, signal.SIGKILL)
        channel.close()
        return None
    request = _Request(**json.loads(message))
    pid = os.fork()
    if pid == 0:
        return request, fds
    running[pid] = channel, request.number
    for fd in fds:
        os.close(fd)
    return None


def _reap(running: dict[int, tuple[socket.socket, int]]) -> None:
    """Reports every child that has ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        channel, number = running.pop(pid)
        # who has left need not know
        with contextlib.suppress(OSError):
            channel.send(json.dumps([number, "exit code", os.waitstatus_to_exitcode(status)]).encode())


def _become(request: _Request, fds: list[int], channel: socket.socket) -> None:
    """Makes this process look as if it had just been started for the request."""
    end_with_parent()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # ignored where the tests run under nohup or in the background, and here in what they start
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if len(fds) == 2:
        fds.append(os.open(os.devnull, os.O_RDONLY))
    for fd, number in zip(fds, (1, 2, 0), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    if os.isatty(0):
        # so that Ctrl-C in it is a signal; a terminal of a shell stays the shell's
        with contextlib.suppress(PermissionError):
            fcntl.ioctl(0, termios.TIOCSCTTY)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None
    beside = str(Path(request.program).resolve().parent) if request.is_script else request.cwd
    found_first = [beside, *filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))]
    # of a checkout, only the source roots are installed
    sys.path[:] = [*found_first, *(entry for entry in sys.path if entry not in (*found_first, _ROOT))]
    sys.argv[:] = [request.program, *request.arguments]
    channel.send(json.dumps([request.number, "pid", os.getpid()]).encode())
    channel.close()
    _prepare_forkserver()


def _prepare_forkserver() -> None:
    """Forks a process that becomes multiprocessing's forkserver as soon as this one starts it: it has its imports.

    A forkserver that is started anew imports for longer than most runs train.
    """
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        asking.close()
        _become_forkserver(asked)
    asked.close()
    start_anew = multiprocessing.util.spawnv_passfds

    def start(path: bytes, arguments: Sequence[str], passed: Sequence[int]) -> int:
        if "multiprocessing.forkserver" not in arguments[-1] or asking.fileno() == -1:
            return start_anew(path, arguments, passed)
        with asking:
            request = json.dumps([arguments[-1], list(passed), dict(os.environ)])
            socket.send_fds(asking, [request.encode()], list(passed))
        return pid

    multiprocessing.util.spawnv_passfds = start


def _become_forkserver(asked: socket.socket) -> NoReturn:
    """Waits for what the new forkserver has to run, and for its descriptors; there is none if the parent ends."""
    end_with_parent()
    # a Ctrl-C in the terminal is for the command
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asked:
        message, received, _, _ = socket.recv_fds(asked, _MAX_REQUEST_BYTES, 8)
    if not message:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code, numbers, environment = json.loads(message)
    os.environ.clear()
    os.environ.update(environment)
    # away from the numbers that they are to have
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max(*numbers, *received)) for fd in received]
    for fd in received:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    # it outlives its parent until its pipe is closed, as any forkserver
    _prctl(_PR_SET_PDEATHSIG, 0)
    try:
        exec(code, {"__name__": "__main__"})
    finally:
        os._exit(0)


def _leave_operators_at_exit() -> None:
    """Has processes end without taking torch's operators apart, which copies a third of the memory that they share."""
    for finalizer in list(weakref.finalize._registry):
        if (found := finalizer.peek()) and found[1].__module__ == "torch.library":
            finalizer.atexit = False


def _main() -> Any:
    # nothing that is imported is garbage
    gc.disable()
    for module in sys.argv[2:]:
        __import__(module)
    _leave_operators_at_exit()
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"{n_threads} threads after the imports; a process with threads cannot be forked"
    # what is never collected stays shared with the forked processes
    gc.freeze()
    gc.enable()
    owner, *listeners = (socket.socket(fileno=int(number)) for number in sys.argv[1].split(","))
    request, fds, channel = _serve(owner, listeners[0] if listeners else None)
    _become(request, fds, channel)
    if request.is_script:
        # as it has it when Python itself runs it
        return runpy.run_path(str(Path(request.program).absolute()), run_name="__main__")
    return runpy.run_module(request.program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
