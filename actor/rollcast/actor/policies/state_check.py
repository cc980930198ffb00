"""Checks the arrays of a policy before they are used: names, shapes, dtypes, and finite numbers."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import InvalidTensorError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicyState

# The shapes and dtypes of a policy's arrays, by name.
StateLayout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def check_policy_state(expected: StateLayout, state: PolicyState, *, buffers: Collection[str] = ()) -> None:
    """Checks that arrays are valid for a policy.

    Args:
        expected: Shape and dtype by name.
        state: The arrays.
        buffers: Names of untrained arrays, which may hold infinities, such as a mask in a user's network.

    Raises:
        ProtocolMismatchError: If names, shapes or dtypes differ.
        InvalidTensorError: If a number is NaN, or a weight infinite.
    """
    missing, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unknown:
        raise ProtocolMismatchError(
            f"the policy's weights lack {missing} and have {unknown} in addition; expected {sorted(expected)}; start "
            "learner and actor with the same network, hidden sizes and spaces"
        )
    for name, (shape, dtype) in expected.items():
        array = state[name]
        if array.shape != shape or array.dtype != dtype:
            raise ProtocolMismatchError(
                f"the policy's weight {name!r} is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}; "
                "start learner and actor with the same hidden sizes and spaces"
            )
    for name in expected:
        _check_numbers(name, state[name], is_buffer=name in buffers)


def _check_numbers(name: str, array: NDArray[np.generic], *, is_buffer: bool) -> None:
    if array.dtype.kind != "f":
        return
    with np.errstate(all="ignore"):
        # One pass in the usual case: the sum is finite. If it is not, or overflows, every number is checked.
        if math.isfinite(np.add.reduce(array, None)):
            return
        wrong = np.isnan(array) if is_buffer else ~np.isfinite(array)
    if wrong.any():
        index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise InvalidTensorError(
            f"the policy's weight {name!r} holds {array[index]} at {list(index)}; expected finite numbers; this policy "
            "cannot act: training has diverged, or the policy was damaged; use an earlier policy"
        )
