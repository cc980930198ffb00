import contextlib
import io
import multiprocessing
import os
import pty
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from rollcast.services.process.child_lines import ChildLines, write_to_parent

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def stderr_of_a_terminal() -> Iterator[io.StringIO]:
    """Makes a terminal this process's stderr, and yields what replaces `sys.stderr`, as a live view does."""
    before = os.dup(2)
    ours, its = pty.openpty()
    os.dup2(its, 2)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            yield shown
    finally:
        os.dup2(before, 2)
        for descriptor in (before, ours, its):
            os.close(descriptor)


def write(sender: Connection, name: str) -> None:
    write_to_parent(sender)
    sys.stderr.write(f"{name} says\n")
    os.write(2, f"{name} ends without a line break".encode())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_lines_of_children_come_to_the_stderr_of_now(method: str):
    context, lines = multiprocessing.get_context(method), ChildLines()
    with stderr_of_a_terminal() as shown:
        for name in ("left", "right"):
            child = context.Process(target=write, args=(lines.sender(), name))
            child.start()
            child.join()
            assert child.exitcode == 0
        lines.close()
        lines.close()
    assert shown.getvalue().splitlines() == [
        "left says",
        "left ends without a line breakright says",
        "right ends without a line break",
    ]
    assert "rollcast-child-lines" not in {thread.name for thread in threading.enumerate()}


def test_a_child_that_lives_on_does_not_hold_up_the_end():
    lines = ChildLines()
    with stderr_of_a_terminal() as shown:
        sender = lines.sender()
        assert sender is not None
        held = os.dup(sender.fileno())
        os.write(held, b"one\n")
        os.write(held, b"two")
        lines.close()
        os.close(held)
    assert shown.getvalue() == "one\ntwo\n"
    assert "rollcast-child-lines" not in {thread.name for thread in threading.enumerate()}


def test_without_a_terminal_children_keep_their_stderr(capfd: pytest.CaptureFixture[str]):
    assert ChildLines().sender() is None
