"""Paces the streams that send answers at intervals: checks the interval, and waits until the next answer."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import grpc

from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.limits import MAX_INTERVAL_S, MIN_INTERVAL_S
from rollcast.services.limits.stream_gate import StreamGate

# Seconds after which a watch checks whether training or the server has ended.
_LOOK_S: Final = 0.5


def turns(
    interval_s: float, context: grpc.ServicerContext, gate: StreamGate, is_over: Callable[[], bool]
) -> Iterator[None]:
    """Yields when an answer is due: at once, after every interval, and as soon as `is_over` returns True.

    Args:
        interval_s: Seconds between two answers; 0: 1 s.
        context: The call. The iteration ends when the client has disconnected.
        gate: Signals that the server stops.
        is_over: Returns whether no more changes will follow. The caller of `turns` then sends a last answer and ends.

    Raises:
        InvalidInputError: The interval is out of range.
        NotReadyError: The server stops.
    """
    interval_s = interval_s or 1.0
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:  # NaN too
        raise InvalidInputError(
            f"interval_s is {interval_s}; expected {MIN_INTERVAL_S} to {MAX_INTERVAL_S} s, or 0 for 1 s; correct it",
            limit="max_interval_s" if interval_s > MAX_INTERVAL_S else "min_interval_s",
        )
    caller_gone = threading.Event()
    if not context.add_callback(caller_gone.set):
        return
    while True:
        yield
        deadline = time.monotonic() + interval_s
        while (remaining_s := deadline - time.monotonic()) > 0 and not is_over():
            if caller_gone.wait(min(remaining_s, _LOOK_S)):
                return
            gate.check_running()
