"""`rollcast top`, in a terminal and in a pipe, beside learners that are real or have a made-up history."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from tests.histories import busy_run, points, serve_history, status, update
from tests.processes import (
    DEADLINE_S,
    ROOT,
    ended,
    environment,
    refused,
    rollcast,
    zygote,
)

_HOME = "\x1b[H"
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ALTERNATE, _NORMAL, _HIDE, _SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A terminal of its own with a command in it; `seen` is all that the command has written."""

    def __init__(self, *arguments: str, width: int = 100, height: int = 40, **variables: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self._slave)
        self.seen = ""
        # COLUMNS would fix the width.
        inherited = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
        self.process = zygote().fork(
            "rollcast.learner",
            ["top", *arguments],
            cwd=ROOT,
            environment=inherited | {"TERM": "xterm-256color"} | variables,
            outputs=[self._slave] * 3,
        )

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}; seen: {self.seen[-3000:]!r}"
            readable, _, _ = select.select([self._master], [], [], 0.05)
            if readable:
                self.seen += os.read(self._master, 1 << 16).decode("utf-8", "replace")

    def lines(self) -> list[str]:
        """Returns the last whole frame, without colours."""
        *_, last, _unfinished = ["", *self.seen.split(_HOME)][-3:]
        return [line.rstrip() for line in _SEQUENCE.sub("", last).splitlines()]

    def shows(self, text: str) -> None:
        self.read_until(lambda: any(text in line for line in self.lines()), f"{text!r} in a frame")

    def ends(self) -> int:
        """Waits for the end, and returns the exit code."""
        self.read_until(lambda: self.process.poll() is not None, "the end of the command")
        while select.select([self._master], [], [], 0.05)[0]:
            self.seen += os.read(self._master, 1 << 16).decode("utf-8", "replace")
        assert self.process.returncode is not None
        return self.process.returncode

    def is_restored(self) -> bool:
        """Returns whether the terminal is as it was: its modes, its screen and its cursor."""
        return (
            termios.tcgetattr(self._slave) == self.before
            and self.seen.rfind(_NORMAL) > self.seen.rfind(_ALTERNATE) > -1
            and self.seen.rfind(_SHOW) > self.seen.rfind(_HIDE) > -1
        )

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        ended(self.process)
        os.close(self._slave)
        os.close(self._master)


@contextlib.contextmanager
def terminal(*arguments: str, **options) -> Iterator[Terminal]:
    with contextlib.closing(Terminal(*arguments, **options)) as opened:
        yield opened


def n_shown(lines: list[str]) -> int:
    return next((int(line.split()[0]) for line in lines if re.match(r"\d+ of 200 shown", line)), 0)


class TestInATerminal:
    def test_draws_frames_until_q_is_pressed_and_gives_the_terminal_back(self):
        with serve_history(busy_run()) as served, terminal("--address", served.address) as top:
            top.shows("1 of 3 actors is silent, left-arm for 14 s")
            assert top.lines()[0].startswith("rollcast  LunarLander-v3")
            now = status(mean_return=199.5)
            served.history.set_next(update(61.0, actors=busy_run().actors, points=points(1, end_s=61.0), status=now))
            top.shows("return 199.5")
            top.press(b"q")
            assert top.ends() == 0
            assert top.is_restored()

    @pytest.mark.parametrize("end", ["ctrl-c", "SIGTERM"])
    def test_gives_the_terminal_back_when_it_is_interrupted(self, end):
        with serve_history(busy_run()) as served, terminal("--address", served.address) as top:
            top.shows("left-arm")
            if end == "ctrl-c":
                top.press(b"\x03")
            else:
                top.process.terminate()
            assert top.ends() == 0
            assert top.is_restored()
            assert "Traceback" not in top.seen

    def test_ctrl_z_gives_the_terminal_back_and_goes_on_later(self):
        with serve_history(busy_run()) as served, terminal("--address", served.address) as top:
            top.shows("left-arm")
            top.press(b"\x1a")
            top.read_until(top.is_restored, "the terminal as it was")
            drawn_before = len(top.seen)
            os.kill(top.process.pid, signal.SIGCONT)
            top.read_until(lambda: "left-arm" in top.seen[drawn_before:], "a frame after the stop")
            top.press(b"q")
            assert top.ends() == 0

    def test_fits_the_terminal_when_its_size_changes(self):
        with serve_history(busy_run(200)) as served, terminal("--address", served.address, height=40) as top:
            top.shows("of 200 shown")
            n_before = n_shown(top.lines())
            top.resize(60, 16)
            top.read_until(lambda: 0 < n_shown(top.lines()) < n_before, "a smaller frame")
            assert len(top.lines()) <= 16
            assert max(map(len, top.lines())) <= 60


class TestInAPipe:
    @pytest.mark.parametrize("arguments", [(), ("--once",)])
    def test_prints_one_frame_with_all_actors_and_without_colours(self, arguments):
        with serve_history(busy_run(200)) as served:
            done = rollcast("top", "--address", served.address, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.replace("\n", "").isprintable()
        assert sum(line.startswith(("node-", "left-arm ")) for line in done.stdout.splitlines()) >= 200
        assert "trainer waits 38 %" in done.stdout

    def test_once_in_a_terminal_leaves_its_frame_there(self):
        with serve_history(busy_run()) as served, terminal("--address", served.address, "--once") as top:
            assert top.ends() == 0
        assert _ALTERNATE not in top.seen
        assert "left-arm" in top.seen


class TestErrors:
    """In words, which unit/tools/watching/test_follower.py has all."""

    def test_no_learner(self):
        said = refused("top", "--address", "127.0.0.1:1", code=1)
        assert "LearnerUnreachableError: no learner answers at 127.0.0.1:1" in said
