"""The state of a replay buffer's part in a checkpoint: arrays and values by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class PartState:
    """The state of a store, a sampler, a limiter, or a whole buffer.

    Attributes:
        arrays: Arrays by name; copies, or arrays that do not change while the buffer's lock is held.
        values: JSON values by name.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> "PartState":
        """Returns the state that `join` stored under this name."""
        prefix = f"{name}."
        arrays, values = (
            {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
            for found in (self.arrays, self.values)
        )
        return PartState(arrays, values)

    def whole(self, name: str, low: int, high: int) -> int:
        """Returns a value that is a whole number in [low, high].

        Raises:
            ValueError: The value is not such a number.
        """
        value = self.values[name]
        if not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        """Returns a value that is a number in [low, high].

        Raises:
            ValueError: The value is not such a number.
        """
        value = self.values[name]
        if not isinstance(value, int | float) or not low <= value <= high:  # of NaN, neither is true
            raise ValueError(f"{name} is {value!r:.80}; expected a number from {low:g} to {high:g}")
        return value

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Returns an array of this shape and dtype. A dimension of -1 may have any size.

        Raises:
            ValueError: The array has another shape or dtype.
        """
        array = self.arrays[name]
        fits = len(array.shape) == len(shape) and all(n in (-1, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}; expected {np.dtype(dtype)} {list(shape)}")
        return array

    def slots(self, name: str, n_slots: int) -> NDArray[np.int64]:
        """Returns an array of distinct slots below `n_slots`, int64 `[N]`.

        Raises:
            ValueError: The array has other values.
        """
        slots = self.array(name, (-1,), np.int64)
        if (len(slots) and not 0 <= slots.min() <= slots.max() < n_slots) or len(np.unique(slots)) != len(slots):
            raise ValueError(
                f"{name} has slots from {slots.min()} to {slots.max()}; expected each below {n_slots} and once at most"
            )
        return slots


class Part(Protocol):
    """A part of a buffer with a state. Callers hold the buffer's lock."""

    def state(self) -> PartState:
        """Returns the state for a checkpoint."""

    def load_state(self, state: PartState) -> None:
        """Replaces all content by an earlier result of `state`."""


class GeneratorPart:
    """A random generator as a part of a buffer.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def state(self) -> PartState:
        """See `Part.state`."""
        return PartState(values={"generator": generator_state(self._generator)})

    def load_state(self, state: PartState) -> None:
        """See `Part.load_state`."""
        self._generator.bit_generator.state = state.values["generator"]


def join(parts: Mapping[str, PartState]) -> PartState:
    """Joins the states of several parts into one. Each name in the joint state begins with the name of its part."""
    return PartState(
        {f"{name}.{key}": array for name, part in parts.items() for key, array in part.arrays.items()},
        {f"{name}.{key}": value for name, part in parts.items() for key, value in part.values.items()},
    )


def generator_state(generator: np.random.Generator) -> Mapping[str, Any]:
    """Returns a generator's state as JSON values; assign it to `bit_generator.state` to restore it."""
    return generator.bit_generator.state
