"""`rollcast top`: shows a run in the terminal while it trains."""

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.services.errors import NotReadyError
from rollcast.tools.settings import TopSettings
from rollcast.tools.top.frame import frame
from rollcast.tools.watching.follower import Follower, Snapshot

# The longest and the shortest time between two frames, in seconds. Without an update, only times change.
_LONGEST_S: Final = 1.0
_SHORTEST_S: Final = 0.1
# A pipe has no width.
_PIPE_WIDTH: Final = 120

# Keys that quit; an empty one means that the terminal was closed.
_QUIT: Final = (b"q", b"Q", b"")
_SUSPEND: Final = b"\x1a"


def top(settings: TopSettings, output: IO[str]) -> int:
    """Shows the run until the user quits, and returns the exit code.

    Raises:
        ConfigurationError: If the certificates or tokens cannot be used.
        LearnerUnreachableError: If no learner answers at the address.
        UnauthenticatedError: If the learner requires a token and gets none, or an unknown one.
        PermissionDeniedError: If the token's role may not watch.
        ProtocolMismatchError: If the learner is too old to send its history.
    """
    console = Console(file=output, highlight=False)
    security = settings.client_security()
    with Follower(settings.address, security=security, timeout_s=settings.timeout_s) as follower:
        snapshot = follower.wait_for_first(settings.timeout_s)
        if settings.once or not console.is_terminal or console.is_dumb_terminal:
            _print_once(settings, output, snapshot)
            return 0
        _show(settings, console, follower)
    return 0


def _print_once(settings: TopSettings, output: IO[str], snapshot: Snapshot) -> None:
    view, problem, _ = snapshot
    if view.now_s is None:
        raise NotReadyError(problem)
    width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
    for line in frame(view, problem, width=width, height=None, span_s=settings.span_s):
        print_line(output, line.plain.rstrip())


def _show(settings: TopSettings, console: Console, follower: Follower) -> None:
    with stop_on_signals(lambda: None) as received, _Keys() as keys:
        live = Live(console=console, screen=True, auto_refresh=False)
        with live:
            while not received:
                snapshot = follower.snapshot()
                live.update(_drawn(settings, console, snapshot), refresh=True)
                key = _wait(follower, keys, console, snapshot.version, received)
                if key in _QUIT:
                    return
                if key == _SUSPEND:
                    _suspend(live, keys)


def _drawn(settings: TopSettings, console: Console, snapshot: Snapshot) -> Text:
    width, height = console.size
    lines = frame(snapshot.view, snapshot.problem, width=width, height=height, span_s=settings.span_s)
    return Text("\n", no_wrap=True).join(lines)


def _wait(follower: Follower, keys: "_Keys", console: Console, version: int, received: Sequence[int]) -> bytes | None:
    """Waits for a key, an update, a signal, a new size of the terminal, or a second, and returns the key."""
    size = console.size
    begin = time.monotonic()
    while not received and time.monotonic() - begin < _LONGEST_S:
        if (key := keys.read(_SHORTEST_S)) is not None:
            return key
        if console.size != size or follower.wait(version, 0.0):
            return None
    return None


def _suspend(live: Live, keys: "_Keys") -> None:
    """Restores the terminal and stops this process, as Ctrl-Z does; continues after SIGCONT."""
    live.stop()
    keys.release()
    os.kill(os.getpid(), signal.SIGSTOP)
    keys.take()
    live.start()


class _Keys:
    """The keys that the user presses. In a `with` block, they arrive at once and are not echoed.

    If stdin is not a terminal, there are no keys.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> "_Keys":
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.release()

    def take(self) -> None:
        """Makes the terminal deliver keys one by one, including Ctrl-Z."""
        if self._fd is None:
            return
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        attributes = termios.tcgetattr(self._fd)
        attributes[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(self._fd, termios.TCSADRAIN, attributes)

    def release(self) -> None:
        """Restores the terminal's settings."""
        if self._fd is not None and self._before:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> bytes | None:
        """Returns the next key; None if none is pressed in time."""
        if self._fd is None:
            time.sleep(timeout_s)
            return None
        readable, _, _ = select.select([self._fd], [], [], timeout_s)
        if not readable:
            return None
        return os.read(self._fd, 1)
