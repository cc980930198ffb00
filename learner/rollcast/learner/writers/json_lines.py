"""Writes metrics as JSON lines: one object a line, for jq and pandas."""

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rollcast.learner.writers.record_file import RecordFile


class JsonLinesWriter:
    """A file of lines `{"time": ..., "env_steps": ..., "name": value, ...}`. For one thread.

    Each line is written at once: `tail -f` shows it, and a killed process leaves complete lines.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Opens the file for appending.

        Args:
            path: The file; its directory exists.
            clock: Seconds since the epoch.

        Raises:
            OSError: If the file cannot be opened.
        """
        self._file = RecordFile(path)
        self._clock = clock

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Appends a line; see `MetricsWriter.write`. NaN and infinity become null, because JSON has neither."""
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        record = {"time": round(self._clock(), 3), "env_steps": env_steps, **values}
        self._file.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        """Closes the file; see `MetricsWriter.close`."""
        self._file.close()
