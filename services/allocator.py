"""Keeps the memory of large buffers in the process, where glibc would give it back with every message."""

import ctypes
import sys
from typing import Final

# From malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest glibc takes: half a heap of a thread's arena.
_LARGEST_REUSED_BYTES: Final = 32 << 20
# How much may lie idle at the top of a heap before it is given back.
_KEPT_BYTES: Final = 64 << 20


def reuse_large_buffers() -> None:
    """Makes glibc's malloc take buffers of up to 32 MiB from its heaps, for the whole process; call it once, early.

    A rollout of 1 MiB passes through five buffers of its size. By default each of them is mapped, faulted in page by
    page, zeroed by the kernel and unmapped again, which costs the learner 0.5 ms of 1.9 ms a rollout; from the heap
    they are the same warm pages each time. What it costs: up to 64 MiB more resident memory in a process that had
    such buffers. Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
