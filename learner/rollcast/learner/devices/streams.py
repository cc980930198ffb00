"""The streams of a GPU besides that on which it computes: two for copies, one on which graphs are captured.

torch takes the streams of a process from a pool of 32 and begins again with the first one. Were they not shared, the
copies of one thread could land in a graph that another captures.
"""

import threading
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStreams:
    """The streams of a GPU, which all threads share.

    Attributes:
        free_copies: Has copies that wait for nothing: from main memory into new tensors.
        ordered_copies: Has copies that wait for the stream of the thread that asks for them.
        capture: Has the work of which graphs are made.
    """

    free_copies: torch.cuda.Stream
    ordered_copies: torch.cuda.Stream
    capture: torch.cuda.Stream


_made: Final[dict[torch.device, DeviceStreams]] = {}
_lock: Final = threading.Lock()  # guards the dictionary


def streams_of(device: torch.device) -> DeviceStreams:
    """Returns the streams of a GPU, which are made when they are first wanted. Any thread may call.

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
