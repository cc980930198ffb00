"""Shares memory between processes of one machine."""

import mmap
import os
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection


class SharedMemory:
    """An unnamed block of memory, initially zeroed.

    When the last process that maps the block ends, the kernel frees the block, even after a crash.

    Attributes:
        buffer: The memory. Arrays made from the buffer keep the memory alive, even after `close`.
    """

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps a descriptor. `close` closes the descriptor.

        Args:
            descriptor: A descriptor from `create` or `receive`.
            n_bytes: The size of the block, in bytes.
        """
        self._descriptor = descriptor
        self.buffer = mmap.mmap(descriptor, n_bytes)

    @classmethod
    def create(cls, n_bytes: int) -> "SharedMemory":
        """Makes a block.

        Args:
            n_bytes: The size in bytes, at least 1.
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
        """Receives a block that `send` at the other end of the connection has sent."""
        n_bytes = int.from_bytes(connection.recv_bytes(), "little")
        return cls(reduction.recv_handle(connection), n_bytes)

    def send(self, connection: Connection, pid: int) -> None:
        """Sends the block to another process.

        Args:
            connection: A duplex connection, whose other end calls `receive`.
            pid: The process id of the other process.
        """
        connection.send_bytes(len(self.buffer).to_bytes(8, "little"))
        reduction.send_handle(connection, self._descriptor, pid)

    def close(self) -> None:
        """Closes the descriptor. The last array made from the buffer frees the memory. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
