"""A fresh shell, in which tests type what the documentation shows."""

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.processes import ROOT, free_port, zygote
from tests.screen import ASKS, ASKS_FOR_MORE, Screen
from tests.zygote import end_with_parent

# Makes every run small.
SMALL = {
    "ROLLCAST_TOTAL_STEPS": "1",
    "ROLLCAST_N_ACTORS": "1",
    "ROLLCAST_ACTOR_KIND": "sequential",
    "ROLLCAST_ENVS_PER_ACTOR": "4",
    # whole rollouts of an actor, as PPO wants them, also of two agents
    "ROLLCAST_BATCH_SIZE": "8",
    # most of the time of a small run would be PPO's ten passes
    "ROLLCAST_PPO__N_EPOCHS": "1",
}

# No command that a page shows takes a quarter of it on a machine of two cores with other work.
_LONGEST_S = 300.0

# A stand-in for a program. It asks the tests to fork the program, passes signals on, and ends with its exit code.
_STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys
words = [*{script!r}, *sys.argv[1:]]
if not words or words[0].startswith("-"):
    os.execv({python!r}, [{python!r}, *words])
forwarded = (signal.SIGINT, signal.SIGTERM)
# until it is known where to: the program may be seen before
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
environment = dict(os.environ, PATH=os.environ["PATH"].replace({folder!r} + os.pathsep, ""))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tests:
    tests.connect({address!r})
    socket.send_fds(tests, [json.dumps([words, os.getcwd(), environment]).encode()], [1, 2, 0])
    pid = int(tests.recv(64))
    for number in forwarded:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    code = int(tests.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Programs:
    """A folder of stand-ins for `rollcast` and `python`, which start without importing torch anew.

    Scripts are forked from a process that has imported rollcast. `python` without a script is the real one.

    Attributes:
        folder: The folder.
    """

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="rollcast-shell-")
        self.folder = Path(self._scratch.name)
        address = str(self.folder / "socket")
        own = Path(sys.executable).parent
        for name, script in (("rollcast", [str(own / "rollcast")]), ("python", [])):
            file = self.folder / name
            texts = {"python": sys.executable, "script": script, "folder": str(self.folder), "address": address}
            file.write_text(_STAND_IN.format(**texts))
            file.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen()
        threading.Thread(target=self._accept, name="test-shell", daemon=True).start()

    def close(self) -> None:
        # wakes the thread, which `close` alone does not
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._scratch.cleanup()

    def _accept(self) -> None:
        # until `close`
        with contextlib.suppress(OSError):
            while True:
                stand_in, _ = self._listener.accept()
                threading.Thread(target=_run, args=(stand_in,), name="test-shell", daemon=True).start()


def _run(stand_in: socket.socket) -> None:
    """Runs what a stand-in asks for, which ends when the stand-in is killed."""
    with stand_in:
        message, files, _, _ = socket.recv_fds(stand_in, 1 << 20, 3)
        if not message:
            return
        (script, *arguments), cwd, environment = json.loads(message)
        try:
            process = zygote().fork(
                script, arguments, cwd=Path(cwd), environment=environment, outputs=files, is_script=True
            )
        finally:
            for file in files:
                os.close(file)

        def end() -> None:
            stand_in.recv(1)
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)

        watch = threading.Thread(target=end, name="test-shell", daemon=True)
        watch.start()
        _tell(stand_in, process.pid)
        _tell(stand_in, process.wait())
        watch.join()


def _tell(stand_in: socket.socket, number: int) -> None:
    """Sends a number to a stand-in."""
    with contextlib.suppress(OSError):  # it was killed, and nobody is left to be told
        stand_in.send(str(number).encode())


class Shell:
    """A fresh shell in a folder of its own, with the examples as in a checkout, and a port for the pages'.

    Args:
        folder: The folder.
        is_warm: `rollcast` and `python` are forked from a process that has imported them, which saves seconds for each.
    """

    def __init__(self, folder: Path, *, is_warm: bool = True) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "home").mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        self._programs = Programs() if is_warm else None
        self._activate = f". {shlex.quote(str(Path(sys.executable).parent / 'activate'))} && "
        if self._programs is not None:
            self._activate += f"PATH={shlex.quote(str(self._programs.folder))}:$PATH && "
        self._variables = {
            "HOME": str(folder / "home"),
            "PATH": os.defpath,
            "ROLLCAST_ADDRESS": self.address,
            "ROLLCAST_LEARNER_ADDRESS": self.address,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._programs is not None:
            self._programs.close()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def here(self, text: str) -> str:
        """Returns a text with the placeholders for hosts and the port replaced."""
        for host in ("LEARNER_HOST", "learner.example.org"):
            text = text.replace(f"{host}:50051", "localhost:50051")
        return text.replace(":50051", f":{self.port}")

    def run(self, command: str, **variables: str) -> str:
        """Types a command and returns what it prints."""
        done = subprocess.run(**self._process(command, variables), capture_output=True, timeout=240)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Types a command in the background, and kills what is left of it."""
        process = subprocess.Popen(
            **self._process(re.sub(r"^((?:[A-Z]+=\S+ )*)", r"\1exec ", command), variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  # one call of the system, with nothing to import or to lock
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _process(self, command: str, variables: dict[str, str]) -> dict[str, object]:
        environment = self._variables | SMALL | variables
        script = self._activate + self.here(command)
        return {"args": ["bash", "-c", script], "cwd": self.folder, "env": environment, "text": True}


class Terminal:
    """A terminal with bash, in which tests type what a page shows, and read what its reader would see.

    It begins with an empty home, no variables of rollcast's, and `.venv` activated. Pages' port stands for a free one.
    Ctrl-C and Ctrl-\\ do what they do at a desk, also where the tests ignore them, as in the background.

    Args:
        folder: The folder to begin in; several terminals may share it.
        port: What stands for port 50051.
        programs: What stands for `rollcast` and `python`.
    """

    def __init__(self, folder: Path, port: int, programs: Programs) -> None:
        self._port = port
        self._screen, self._changed = Screen(), threading.Condition()
        self._is_over, self._asked = False, 0
        (folder / "home").mkdir(exist_ok=True)
        self._fd, inner = pty.openpty()
        self._name = Path(os.ttyname(inner))
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        modes = termios.tcgetattr(inner)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(inner, termios.TCSANOW, modes)
        variables = {"HOME": str(folder / "home"), "PATH": os.defpath, "TERM": "xterm", "LANG": "C.UTF-8"}
        # octal, as bash reads a prompt
        variables |= {"PS1": f"\\{ord(ASKS):03o}", "PS2": f"\\{ord(ASKS_FOR_MORE):03o}"}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            cwd=folder, env=variables, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True, preexec_fn=_at_a_desk,  # noqa: PLW1509  # system calls alone
        )  # fmt: skip
        os.close(inner)
        self._reader = threading.Thread(target=self._read, name="test-terminal", daemon=True)
        self._reader.start()
        self.wait(lambda: self._screen.asked == 1, "bash to ask")
        activate = f". {shlex.quote(str(Path(sys.executable).parent / 'activate'))}"
        self.type(f"{activate}; PATH={shlex.quote(str(programs.folder))}:$PATH; PS1='\\{ord(ASKS):03o}'")
        self.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kills everything that was started here."""
        for process in psutil.Process(self._bash.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._bash.kill()
        self._bash.wait()
        self._reader.join(_LONGEST_S)
        assert not self._reader.is_alive(), f"not ended, and so the terminal is held: {self._holders()}"
        os.close(self._fd)

    def _holders(self) -> list[str]:
        """Returns the command lines of the processes that have this terminal open."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended meanwhile, and holds nothing
                if self._name in {fd.readlink() for fd in Path(f"/proc/{process.pid}/fd").iterdir()}:
                    found.append(f"{process.pid} {shlex.join(process.cmdline())}")
        return found

    def here(self, text: str) -> str:
        """Returns a page's text with this machine for its hosts, and the free port for its port."""
        return text.replace("LEARNER_HOST", "localhost").replace(":50051", f":{self._port}")

    def type(self, command: str) -> None:
        """Types a command, of several lines perhaps, as soon as the one before has ended. Forgets what was printed."""
        self.wait_ready()
        first, *more = self.here(command).splitlines()
        with self._changed:
            self._screen.clear()
            self._asked, asked_for_more = self._screen.asked, self._screen.asked_for_more
        os.write(self._fd, f"{first}\n".encode())
        for number, line in enumerate(more, 1):
            self.wait(
                lambda number=number: self._screen.asked_for_more == asked_for_more + number, "bash to ask for more"
            )
            os.write(self._fd, f"{line}\n".encode())

    def press(self, key: str) -> None:
        """Presses a key with Ctrl, named as terminals print it: `^C`."""
        os.write(self._fd, bytes([ord(key[1]) - ord("@")]))

    def is_ready(self) -> bool:
        """Returns whether the last command has ended."""
        with self._changed:
            return self._screen.asked > self._asked

    def wait_ready(self) -> None:
        """Waits until the last command has ended."""
        self.wait(self.is_ready, "the end of the command")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Waits until a condition is true, which is looked at again after whatever a program writes."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._is_over, _LONGEST_S)
            assert condition(), f"not within {_LONGEST_S} s: {what}; the terminal shows\n{self.text()}"

    def text(self) -> str:
        """Returns what the last command has printed, as it stands on the screen: lines without spaces at their end."""
        with self._changed:
            return "".join(f"{line.rstrip()}\n" for line in self._screen.lines).strip("\n") + "\n"

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # reading fails when bash and all that it started have ended
        with contextlib.suppress(OSError):
            while written := os.read(self._fd, 1 << 16):
                with self._changed:
                    self._screen.feed(decoder.decode(written))
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def _at_a_desk() -> None:
    """Makes this process end with the tests, control its terminal, take signals, and leave no core files."""
    end_with_parent()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
