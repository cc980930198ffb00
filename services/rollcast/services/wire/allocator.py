"""Keeps the memory of large buffers in the process, instead of releasing it after every message."""

import ctypes
import sys
from typing import Final

# From malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest value that glibc accepts: half a heap of a thread's arena.
_LARGEST_REUSED_BYTES: Final = 32 << 20
# The idle bytes that may stay at the top of a heap.
_KEPT_BYTES: Final = 64 << 20


def reuse_large_buffers() -> None:
    """Makes glibc's malloc take buffers of up to 32 MiB from its heaps. Call it once, early in the process.

    A rollout or a policy passes through half a dozen buffers of its size. By default, glibc maps each buffer, the
    kernel faults in and zeroes every page, and glibc unmaps the buffer again. The heap reuses warm pages. This saves a
    quarter of the time for a rollout of 1 MiB. For a policy of 6.75 MB it saves more than half.

    In return, a process keeps up to 64 MiB of idle memory. The call has no effect without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
