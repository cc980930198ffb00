"""Writes metrics for TensorBoard, in TensorBoard's format."""

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollcast.learner.writers.record_file import RecordFile
from rollcast.services.process.installation import require_extra

# Distinguishes the files of one process and second.
_numbers: Final = itertools.count()


class TensorBoardWriter:
    """An event file of scalars and histograms. For one thread.

    It does not use `torch.utils.tensorboard`, whose import is slow. The first record imports tensorboard, because that
    import also takes time. It does not use tensorboard's file writer either: on a full disk, that writer's thread ends
    with a traceback and loses its records.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time, first_step: int = 0) -> None:
        """Takes the directory; the first record creates the file.

        Args:
            directory: The folder of the event file; created if it does not exist.
            clock: Seconds since the epoch.
            first_step: The first step of this file. TensorBoard hides values in earlier files from this step on.

        Raises:
            ConfigurationError: tensorboard is not installed.
        """
        require_extra("learner", "TensorBoardWriter", "tensorboard")
        self._first_step = first_step
        self._directory = directory
        self._clock = clock
        self._file: RecordFile | None = None
        self._closed = False

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes a record; see `MetricsWriter.write`.

        Raises:
            ValueError: If the writer is closed.
            OSError: If this record or an earlier one cannot be written.
        """
        self._check_open()
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(step=env_steps, summary=Summary(value=values))

    def write_histograms(self, env_steps: int, histograms: Mapping[str, Sequence[int]]) -> None:
        """Writes histograms; see `HistogramWriter.write_histograms`. The bucket of a number k ends at k + 0.5.

        Raises:
            ValueError: If the writer is closed.
            OSError: If this record or an earlier one cannot be written.
        """
        self._check_open()
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, counts in histograms.items():
            if any(counts):
                self._append(step=env_steps, summary=Summary(value=[Summary.Value(tag=name, histo=_histogram(counts))]))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"The TensorBoard writer of {self._directory} is closed; write before close().")

    def _append(self, **content: Any) -> None:  # noqa: ANN401 - the fields of an event
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
            self._file = RecordFile(self._directory / name)
            self._append(file_version="brain.Event:2")
            if self._first_step:
                self._append(step=self._first_step, session_log=SessionLog(status=SessionLog.START))
        RecordWriter(self._file).write(Event(wall_time=self._clock(), **content).SerializeToString())

    def close(self) -> None:
        """Closes the file; see `MetricsWriter.close`."""
        self._closed = True
        if self._file is not None:
            self._file.close()


def _histogram(counts: Sequence[int]) -> Any:  # noqa: ANN401 - tensorboard has no types
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto

    seen = [number for number, count in enumerate(counts) if count]
    numbers = range(seen[-1] + 1)
    return HistogramProto(
        min=seen[0],
        max=seen[-1],
        num=sum(counts),
        sum=sum(number * counts[number] for number in numbers),
        sum_squares=sum(number**2 * counts[number] for number in numbers),
        bucket_limit=[number + 0.5 for number in numbers],
        bucket=[counts[number] for number in numbers],
    )
