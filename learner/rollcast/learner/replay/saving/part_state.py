"""What a checkpoint keeps of a part of a replay buffer: arrays and values by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class PartState:
    """The state of a store, a sampler, a limiter, or of all of them.

    Attributes:
        arrays: By name; copies, or arrays that nobody changes while the buffer's lock is held.
        values: By name; what JSON has.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> "PartState":
        """The one that `join` was given under this name."""
        prefix = f"{name}."
        arrays, values = (
            {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
            for found in (self.arrays, self.values)
        )
        return PartState(arrays, values)

    def whole(self, name: str, low: int, high: int) -> int:
        """A value that is a whole number in [low, high].

        Raises:
            ValueError: It is not.
        """
        value = self.values[name]
        if not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        """A value that is a number in [low, high].

        Raises:
            ValueError: It is not.
        """
        value = self.values[name]
        if not isinstance(value, int | float) or not low <= value <= high:  # of NaN, neither is true
            raise ValueError(f"{name} is {value!r:.80}; expected a number from {low:g} to {high:g}")
        return value

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of this shape and dtype; a dimension of -1 may be anything.

        Raises:
            ValueError: It is another.
        """
        array = self.arrays[name]
        fits = len(array.shape) == len(shape) and all(n in (-1, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}; expected {np.dtype(dtype)} {list(shape)}")
        return array

    def slots(self, name: str, n_slots: int) -> NDArray[np.int64]:
        """An array of slots below `n_slots`, int64 `[N]`, none twice.

        Raises:
            ValueError: It is not.
        """
        slots = self.array(name, (-1,), np.int64)
        if (len(slots) and not 0 <= slots.min() <= slots.max() < n_slots) or len(np.unique(slots)) != len(slots):
            raise ValueError(
                f"{name} has slots from {slots.min()} to {slots.max()}; expected some below {n_slots}, once"
            )
        return slots


class Part(Protocol):
    """What has such a state. The buffer's lock is held."""

    def state(self) -> PartState:
        """What a checkpoint keeps."""

    def load_state(self, state: PartState) -> None:
        """Takes up what `state` has said, in place of whatever is in."""


class GeneratorPart:
    """A generator, as a part.

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
    """One state of several parts, whose names come before theirs."""
    return PartState(
        {f"{name}.{key}": array for name, part in parts.items() for key, array in part.arrays.items()},
        {f"{name}.{key}": value for name, part in parts.items() for key, value in part.values.items()},
    )


def generator_state(generator: np.random.Generator) -> Mapping[str, Any]:
    """Where a generator stands, as JSON has it; its `bit_generator.state` takes it back."""
    return generator.bit_generator.state
