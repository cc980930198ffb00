"""Measures the processor time and memory of this process and its descendants."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
# The fields of user and system time in /proc/PID/stat after the name: of the process, and of its ended children.
_TIMES: Final = slice(11, 15)


class Usage(NamedTuple):
    """The processor time and memory of several processes.

    Attributes:
        cpu_s: The processor time so far, in seconds.
        memory_bytes: The resident memory, in bytes. Shared pages count once for each process.
    """

    cpu_s: float
    memory_bytes: int


def usage_with_children() -> Usage:
    """Returns the usage of this process and its descendants; zeros without /proc, as on macOS and Windows."""
    cpu_s, memory_bytes = 0.0, 0
    if sys.platform != "linux":
        return Usage(cpu_s, memory_bytes)
    for pid in _processes(os.getpid()):
        try:
            times = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[_TIMES]
            pages = (_PROC / str(pid) / "statm").read_text().split()[1]
        except OSError:
            continue  # it has ended since
        cpu_s += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        memory_bytes += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return Usage(cpu_s, memory_bytes)


def _processes(pid: int) -> Iterator[int]:
    """Yields a process and its descendants."""
    yield pid
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return  # it has ended since
    for thread in threads:
        try:
            pids = (thread / "children").read_text().split()
        except OSError:
            continue
        for child in pids:
            yield from _processes(int(child))
