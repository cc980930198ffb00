"""The additional streams of a GPU: two for copies, one for capturing graphs.

torch cycles through a pool of 32 streams for each process. If threads did not share these streams, copies of one thread
could become part of another thread's graph.
"""

import threading
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStreams:
    """The streams of a GPU, which all threads share.

    Attributes:
        free_copies: The stream of copies that need not wait: from main memory into new tensors.
        ordered_copies: The stream of copies that wait for the calling thread's stream.
        capture: The stream of captured work.
    """

    free_copies: torch.cuda.Stream
    ordered_copies: torch.cuda.Stream
    capture: torch.cuda.Stream


_made: Final[dict[torch.device, DeviceStreams]] = {}
_lock: Final = threading.Lock()  # guards the dictionary


def streams_of(device: torch.device) -> DeviceStreams:
    """Returns the streams of a GPU, which are made on first use. Thread-safe.

    Args:
        device: A CUDA device, with its index.
    """
    assert device.index is not None, "threads differ in their current device"
    with _lock:
        if device not in _made:
            _made[device] = DeviceStreams(
                free_copies=_stream(device), ordered_copies=_stream(device), capture=_stream(device)
            )
        return _made[device]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch gives it no types
