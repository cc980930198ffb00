"""Shares memory between processes of one machine."""

import mmap
import os
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection


class SharedMemory:
    """A block of memory without a name, zeroed at first.

    It ends with the last process that has it, however that ended, so nothing has to clean up.

    Attributes:
        buffer: The memory. Arrays made from it keep it alive, also after `close`.
    """

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps a descriptor, and closes it in `close`.

        Args:
            descriptor: A descriptor from `create` or `receive`.
            n_bytes: Size of the block.
        """
        self._descriptor = descriptor
        self.buffer = mmap.mmap(descriptor, n_bytes)

    @classmethod
    def create(cls, n_bytes: int) -> "SharedMemory":
        """Makes a block.

        Args:
            n_bytes: Size in bytes, at least 1.
        """
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("rollcast-vector")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, n_bytes)
        return cls(descriptor, n_bytes)

    @classmethod
    def receive(cls, connection: Connection) -> "SharedMemory":
        """Receives a block that `send` sends at the other end."""
        n_bytes = int.from_bytes(connection.recv_bytes(), "little")
        return cls(reduction.recv_handle(connection), n_bytes)

    def send(self, connection: Connection, pid: int) -> None:
        """Sends the block to another process.

        Args:
            connection: A duplex connection, whose other end calls `receive`.
            pid: Number of that process.
        """
        connection.send_bytes(len(self.buffer).to_bytes(8, "little"))
        reduction.send_handle(connection, self._descriptor, pid)

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last array made from it. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
