"""A file to which whole records are appended, also while the disk is full."""

import os
from pathlib import Path


class RecordFile:
    """A file of records. For one thread.

    Invariant: the file has whole records only, whenever the process is killed, and also while the disk is full: what
    does not fit is kept, and written before the next record that does.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file for appending.

        Args:
            path: The file; its directory exists.

        Raises:
            OSError: If the file cannot be opened.
        """
        # Without a buffer: one would write a part of a record, and not say which.
        self._file = path.open("ab", buffering=0)
        self._path = path
        self._unwritten: list[bytes] = []

    def write(self, record: bytes) -> None:
        """Appends a record.

        Raises:
            OSError: It does not fit, or an earlier one does not; the error names the file.
        """
        self._unwritten.append(record)
        self._write_all()

    def flush(self) -> None:
        """Does nothing: all records that fit are written. A part of the interface of files."""

    def close(self) -> None:
        """Writes what did not fit before, and closes the file; idempotent.

        Raises:
            OSError: It does not fit now, either.
        """
        try:
            self._write_all()
        finally:
            self._unwritten.clear()
            self._file.close()

    def _write_all(self) -> None:
        while self._unwritten:
            record, n_written = self._unwritten[0], 0
            try:
                while n_written < len(record):
                    n_written += self._file.write(record[n_written:])
            except OSError as error:
                self._file.truncate(self._file.seek(0, os.SEEK_END) - n_written)
                raise OSError(error.errno, error.strerror, str(self._path)) from error
            del self._unwritten[0]
