"""The processes and threads of measurements."""

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any


def in_threads(target: Callable[[Any], None], connections: list[Any]) -> None:
    """Runs one thread for each connection."""
    threads = [threading.Thread(target=target, args=(connection,), daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Processes:
    """The processes of a measurement; `kill` ends the last first, so clients before servers."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self._started: list[Any] = []

    def start(self, target: Callable[..., None], *args: object) -> None:
        """Starts a process."""
        self._started.append(self.context.Process(target=target, args=args, daemon=True))
        self._started[-1].start()

    def kill(self) -> None:
        """Kills all processes."""
        for process in reversed(self._started):
            process.kill()
            process.join()
