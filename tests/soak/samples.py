"""Samples of `/proc`, and files of them."""

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import psutil


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time.

    Attributes:
        time_s: Seconds since the soak began.
        process: Its name in the soak.
        pid: Its number: another one under the same name is another process.
        children: Processes below it, theirs included.
    """

    time_s: float
    process: str
    pid: int
    resident_bytes: int
    threads: int
    descriptors: int
    children: int


def take_samples(name: str, pid: int, time_s: float) -> list[Sample]:
    """Looks at a process, and at those below it as `NAME/1`, `NAME/2`, ..., the oldest first.

    Returns:
        One sample of each that has not ended meanwhile.
    """
    samples = []
    try:
        top = psutil.Process(pid)
        below = sorted(top.children(recursive=True), key=lambda child: (child.create_time(), child.pid))
    except psutil.NoSuchProcess:
        return []
    for i, process in enumerate((top, *below)):
        try:
            with process.oneshot():
                sample = Sample(
                    time_s=time_s,
                    process=f"{name}/{i}" if i else name,
                    pid=process.pid,
                    resident_bytes=process.memory_info().rss,
                    threads=process.num_threads(),
                    descriptors=process.num_fds(),
                    children=len(process.children(recursive=True)) if i else len(below),
                )
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # a process that has just ended has no descriptors to show
            continue
        samples.append(sample)
    return samples


class SampleFile:
    """Writes samples as they are taken, so that a soak that is cut short has them, too.

    Args:
        file: Where to, as CSV.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._writer = csv.writer(file)
        self._writer.writerow(field.name for field in dataclasses.fields(Sample))

    def write(self, samples: Iterable[Sample]) -> None:
        """Appends them."""
        self._writer.writerows(dataclasses.astuple(sample) for sample in samples)
        self._file.flush()


def read_samples(path: Path) -> list[Sample]:
    """Reads what a `SampleFile` has written."""
    with path.open(newline="") as file:
        return [
            Sample(float(row["time_s"]), row["process"], *(int(row[name]) for name in _COUNTS))
            for row in csv.DictReader(file)
        ]


_COUNTS: Sequence[str] = ("pid", "resident_bytes", "threads", "descriptors", "children")
