import multiprocessing
import os

import numpy as np

from rollcast.actor.vector.shared_memory import SharedMemory


def test_both_ends_see_the_same_memory_and_nothing_is_left():
    one, other = multiprocessing.Pipe()
    before = set(os.listdir("/proc/self/fd"))
    memory = SharedMemory.create(100)
    memory.send(one, os.getpid())
    received = SharedMemory.receive(other)
    here, there = (np.ndarray((100,), np.uint8, buffer=block.buffer) for block in (memory, received))
    assert not there.any()
    memory.close()
    memory.close()
    received.close()
    here[3] = 7
    assert there[3] == 7
    del here, there, memory, received
    assert set(os.listdir("/proc/self/fd")) == before
    one.close(), other.close()
