"""Writes metrics for TensorBoard with its own event writer."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcast.services.process.installation import require_extra


class TensorBoardWriter:
    """An event file of scalars. For one thread.

    It does not use `torch.utils.tensorboard`, which takes a second more to import for the same file. tensorboard itself
    takes 0.3 s, so it is imported with the first record, when training is under way. The event writer has a thread of
    its own, which `close` joins.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time, first_step: int = 0) -> None:
        """Takes the directory; the first record creates the file.

        Args:
            directory: The folder of the event file; created if it does not exist.
            clock: Seconds since the epoch.
            first_step: TensorBoard then hides values that earlier files hold for this step and later ones.

        Raises:
            ConfigurationError: tensorboard is not installed.
        """
        require_extra("learner", "TensorBoardWriter", "tensorboard")
        self._first_step = first_step
        self._directory = directory
        self._clock = clock
        self._events: Any = None
        self._closed = False

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Writes a record; see `MetricsWriter.write`.

        Raises:
            ValueError: If the writer is closed.
            OSError: If this record or an earlier one cannot be written; the next one begins another file.
        """
        if self._closed:
            raise ValueError(f"The TensorBoard writer of {self._directory} is closed; write before close().")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._events is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._events = EventFileWriter(str(self._directory), flush_secs=5)
            if self._first_step:
                start = SessionLog(status=SessionLog.START)
                self._events.add_event(Event(wall_time=self._clock(), step=self._first_step, session_log=start))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        try:
            self._events.add_event(Event(wall_time=self._clock(), step=env_steps, summary=Summary(value=values)))
        except OSError:
            # the event writer's thread has ended with the error and takes no more records
            with contextlib.suppress(OSError):
                self._events.close()
            self._events = None
            raise

    def close(self) -> None:
        """Writes the rest and joins the event writer's thread; idempotent."""
        self._closed = True
        if self._events is not None:
            self._events.close()
            self._events = None
