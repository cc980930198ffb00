"""A file to which complete records are appended, even while the disk is full."""

import os
from pathlib import Path


class RecordFile:
    """A file of records. For one thread.

    Invariant: the file has complete records only, whenever the process is killed, and also while the disk is full.
    Bytes that do not fit are kept, and written before the next record.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file for appending.

        Args:
            path: The file; its directory exists.

        Raises:
            OSError: If the file cannot be opened.
        """
        # Unbuffered, because a buffer could write part of a record without reporting which.
        self._file = path.open("ab", buffering=0)
        self._path = path
        self._unwritten: list[bytes] = []

    def write(self, record: bytes) -> None:
        """Appends a record.

        Raises:
            OSError: This or an earlier record does not fit; the error names the file.
        """
        self._unwritten.append(record)
        self._write_all()

    def flush(self) -> None:
        """Does nothing, because `write` leaves no buffered bytes. Part of the interface of files."""

    def close(self) -> None:
        """Writes remaining bytes, and closes the file; idempotent.

        Raises:
            OSError: The remaining bytes do not fit.
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
