"""Checks the bytes of bools, in a module without protobuf, which actors do not import at their start."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError

# Up to this number, `translate` takes a third of numpy's time, and keeps the interpreter lock.
_FEW_BOOLS: Final = 2048


def check_bools(values: NDArray[Any], *, what: str) -> None:
    """Refuses bools that are neither 0 nor 1, because numpy would count them wrongly.

    Args:
        values: A C-contiguous bool array of any shape.
        what: The description of the array in messages.

    Raises:
        InvalidTensorError: A byte is neither 0 nor 1.
    """
    if values.size > _FEW_BOOLS:
        largest = int(values.view(np.uint8).max())
    else:
        largest = max(values.tobytes().translate(None, b"\0\1"), default=0)
    if largest > 1:
        raise InvalidTensorError(f"{what} holds the byte {largest}; expected 0 or 1 for bool; convert it first")
