"""Memory that several processes of this machine see, and that ends with them."""

import mmap
import os
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection


class SharedMemory:
    """A block of memory without a name, zeroed at first.

    Having no name, it is gone when the last process that has it is gone, however they ended: nothing has to clean up.

    Attributes:
        buffer: The memory. Arrays made from it keep it alive, also after `close`.
    """

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps a descriptor, and takes it over.

        Args:
            descriptor: What `create` made, or `receive` was sent.
            n_bytes: Its size.
        """
        self._descriptor = descriptor
        self.buffer = mmap.mmap(descriptor, n_bytes)

    @classmethod
    def create(cls, n_bytes: int) -> "SharedMemory":
        """Makes a block.

        Args:
            n_bytes: Its size, at least 1.
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
        """Takes what `send` sends at the other end."""
        n_bytes = int.from_bytes(connection.recv_bytes(), "little")
        return cls(reduction.recv_handle(connection), n_bytes)

    def send(self, connection: Connection, pid: int) -> None:
        """Gives the block to another process.

        Args:
            connection: A duplex one, whose other end calls `receive`.
            pid: Whose.
        """
        connection.send_bytes(len(self.buffer).to_bytes(8, "little"))
        reduction.send_handle(connection, self._descriptor, pid)

    def close(self) -> None:
        """Gives the descriptor back; the memory goes when the last array made from it does. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
