"""A learner process that is killed, frozen and ended, and goes on with its run."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.chaos.processes import start_logged
from tests.processes import free_port
from tests.zygote import ForkedProcess

_END_TIMEOUT_S = 60.0
_LOOK_S = 0.1
_TAIL_CHARACTERS = 1500


class LearnerProcess:
    """One learner: a process, and a thread that starts the next when it ends by itself, which is a failure.

    Args:
        folder: The folder for its log and for the record of what it has learnt from.
        options: Options of `rollcast learner`, besides address and folder.
        variables: Variables of its environment, besides this process's.
        name: Its name, for its log, its record and its thread.
        port: Its port; None: any free port.
        may_end_with: The exit codes with which it may end by itself.
    """

    def __init__(
        self,
        folder: Path,
        run_dir: Path,
        options: Mapping[str, object],
        variables: Mapping[str, str],
        *,
        name: str = "learner",
        port: int | None = None,
        may_end_with: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.port = free_port() if port is None else port
        self.run_dir = run_dir
        self.record = folder / f"{name}.record"
        self.log = folder / f"{name}.log"
        self.failures: list[str] = []
        self.n_starts = 0
        self._options = {"--address": f"127.0.0.1:{self.port}", "--run-dir": run_dir, **options}
        self._variables = dict(variables)
        self._may_end_with = may_end_with
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards the process: it is not started and signalled at once
        self._process = self._start()
        self._thread = threading.Thread(target=self._supervise, name=f"chaos-supervisor-{name}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address at which it listens, or will."""
        return f"127.0.0.1:{self.port}"

    def send_signal(self, number: int) -> None:
        """Sends the process that runs now a signal."""
        with self._lock:
            if self._process.poll() is None:
                self._process.send_signal(number)

    @contextlib.contextmanager
    def down(self, number: int = signal.SIGKILL) -> Iterator[None]:
        """Ends it with a signal for the body, and starts it again."""
        with self._lock:
            self._end(number)
            yield
            self._process = self._start()

    def close(self) -> None:
        """Ends it with SIGTERM, and for good; idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(_END_TIMEOUT_S)
        with self._lock:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)
                self._end(signal.SIGTERM)

    def said(self, text: str, offset: int) -> bool:
        """Returns True if its log has a text after so many bytes."""
        return text.encode() in self.log.read_bytes()[offset:]

    def _end(self, number: int) -> None:
        self._process.send_signal(number)
        try:
            code = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.failures.append(f"{self.name} has not ended {_END_TIMEOUT_S:.0f} s after signal {number}")
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)
            return
        # what may end it by itself may be quicker than SIGTERM
        if code not in ((0, *self._may_end_with) if number == signal.SIGTERM else (-number, *self._may_end_with)):
            self.failures.append(f"{self.name} ended with {code} after signal {number}:\n{self._tail()}")

    def _start(self) -> ForkedProcess:
        options = [str(part) for pair in self._options.items() for part in pair if part != ""]
        self.n_starts += 1
        return start_logged("tests.chaos.learning", [str(self.record), "learner", *options], self.log, self._variables)

    def _supervise(self) -> None:
        while not self._closing.wait(_LOOK_S):
            with self._lock:
                code = self._process.poll()
                if code is not None:
                    if code not in self._may_end_with:
                        self.failures.append(f"{self.name} ended by itself, with {code}:\n{self._tail()}")
                    self._process = self._start()

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL_CHARACTERS:]
