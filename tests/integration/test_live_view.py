"""`rollcast train` in a terminal: the live view, and the lines above it."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, ROOT, environment, zygote
from tests.unit.learner.writers.test_console import screen_after

pytestmark = pytest.mark.slow

_SIZE = {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "40"}


def screen_of(*arguments: object) -> list[str]:
    """Runs a command in a terminal of its own until it ends, and returns the lines that the terminal then shows."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    process = zygote().fork(
        "rollcast.learner",
        [str(argument) for argument in arguments],
        cwd=ROOT,
        environment=environment() | _SIZE,
        outputs=[its] * 3,
    )
    os.close(its)
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    try:
        while process.poll() is None or select.select([ours], [], [], 0.0)[0]:
            assert time.monotonic() < deadline, seen[-3000:]
            if select.select([ours], [], [], 0.05)[0]:
                seen += os.read(ours, 1 << 16)
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(DEADLINE_S) == 0, seen
    return screen_after(re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()))


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_lines_of_actors_stand_above_the_view(method: str, tmp_path: Path):
    shown = screen_of(
        *("train", "--algorithm", "impala", "--env-id", "tests.environments:FailingEnv", "--start-method", method),
        *("--on-step-failure", "drop_episode", "--n-actors", 2, "--total-steps", 3000, "--run-dir", tmp_path / "run"),
    )
    warnings = [index for index, line in enumerate(shown) if "the simulator has lost its licence; the" in line]
    assert len(warnings) == 10, "five of each actor"
    for index in warnings:
        assert re.match(r"2\d{3}-\S+ \S+ (local-[01] )?WARNING environment \d \(seed", shown[index]), shown[index]
    (view,) = [index for index, line in enumerate(shown) if line.startswith("rollcast  impala  finished")]
    assert max(warnings) < view
