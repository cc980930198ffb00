"""Lays out the values of all environments in one block of memory: an array `[n_envs, ...]` for each leaf."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rollcast.actor.environments.returned_values import InvalidValueError, check_observed, is_taken_for
from rollcast.services.errors import InvalidTensorError
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import describe_space, space_leaves

# A value of a space: arrays, numbers, dicts and tuples of them.
Value: TypeAlias = Any

# Each array begins on a new cache line.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    keys: tuple[str | int, ...]
    space: Space[Any]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    # The schema of a discrete space, in int64; None for others. Discrete values are checked, because they are used as
    # indices.
    schema: LeafSchema | None


class SpaceArrays:
    """The values of one space for all environments.

    Args:
        space: The space of one environment.
        n_envs: The number of environments.
        buffer: The memory of the arrays.
        what: The name of the values in messages, such as `"observation"`.
    """

    __slots__ = ("_arrays", "_leaves", "_space", "_what", "_whole")

    def __init__(self, space: Space[Any], n_envs: int, buffer: "Buffer", what: str) -> None:
        self._space = space
        self._what = what
        self._leaves = _leaves(space)
        self._arrays = [buffer.take((n_envs, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        # A space that is itself a leaf, the usual case, takes a path without loops.
        self._whole = self._leaves[0] if not self._leaves[0].keys else None

    def put(self, index: int, value: Value) -> None:
        """Writes the value of one environment.

        Args:
            index: Index of the environment.
            value: A value of the space.

        Raises:
            InvalidValueError: If the value's dtype, shape or nesting does not fit the space, or the value is outside a
                discrete space.
        """
        whole = self._whole
        if whole is not None:
            if (
                type(value) is np.ndarray
                and value.dtype == whole.dtype
                and value.shape == whole.shape
                and whole.schema is None
            ):
                self._arrays[0][index] = value
            else:
                self._arrays[0][index] = self._checked(whole, value)
            return
        for leaf, array in zip(self._leaves, self._arrays, strict=True):
            array[index] = self._checked(leaf, self._member(leaf, value))

    def put_all(self, values: Value) -> None:
        """Writes the values of all environments.

        Args:
            values: Values nested like the space, each leaf `[n_envs, ...]`.

        Raises:
            InvalidValueError: If a leaf is missing, its shape or dtype does not fit the space, or a value is outside a
                discrete space.
        """
        for leaf, array in zip(self._leaves, self._arrays, strict=True):
            self._copy(leaf, array, self._member(leaf, values))

    def put_some(self, indices: NDArray[np.int64], values: Value) -> None:
        """Writes the values of some environments.

        Args:
            indices: Indices of the environments, `[k]`.
            values: Values nested like the space, each leaf `[k, ...]`.

        Raises:
            InvalidValueError: See `put_all`.
        """
        for leaf, array in zip(self._leaves, self._arrays, strict=True):
            chosen = np.empty((len(indices), *leaf.shape), dtype=leaf.dtype)
            self._copy(leaf, chosen, self._member(leaf, values))
            array[indices] = chosen

    def get(self, index: int) -> Value:
        """Returns the value of one environment, as a copy."""
        if self._whole is not None:
            # Numbers are copies already.
            return self._arrays[0][index] if not self._whole.shape else self._arrays[0][index].copy()
        return self._nest([array[index] if array.ndim == 1 else array[index].copy() for array in self._arrays])

    def all(self, *, copy: bool) -> Value:
        """Returns the values of all environments, nested like the space, each leaf `[n_envs, ...]`.

        Args:
            copy: True: copies. False: views, which the next step overwrites.
        """
        if self._whole is not None:
            return self._arrays[0].copy() if copy else self._arrays[0]
        return self._nest([array.copy() if copy else array for array in self._arrays])

    def some(self, indices: NDArray[np.int64]) -> Value:
        """Returns the values of some environments, each leaf `[k, ...]`, as copies."""
        return self._nest([array[indices] for array in self._arrays])

    def _nest(self, values: list[Any]) -> Value:
        return _nest(self._space, iter(values))

    def _member(self, leaf: _Leaf, value: Value) -> Value:
        try:
            for key in leaf.keys:
                value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidValueError(
                f"the {self._what} has no leaf {leaf.path!r} ({type(value).__name__}: {error}); expected "
                f"a value of {describe_space(self._space)}; return all members of the space"
            ) from error
        return value

    def _checked(self, leaf: _Leaf, value: Value) -> Value:
        """Returns the value of one environment; raises if it is not in the leaf's space."""
        taken = self._taken(leaf, value)
        if leaf.schema is not None:
            where = f"leaf {leaf.path!r} of the {self._what}" if leaf.path else f"the {self._what}"
            _check_discrete(leaf, taken, where)
        return taken

    def _taken(self, leaf: _Leaf, value: Value) -> Value:
        """Returns the value of one environment; raises if its shape or dtype does not fit the leaf."""
        # Python's numbers have no dtype.
        kinds: dict[str, type | tuple[type, ...]] = {"f": (float, int), "i": int, "u": int, "b": bool}
        if not leaf.shape and type(value) in (bool, int, float) and isinstance(value, kinds[leaf.dtype.kind]):
            return value
        found = f"a {type(value).__name__}"
        if isinstance(value, np.ndarray | np.generic | list | tuple):
            with contextlib.suppress(ValueError):  # a list of lists of different lengths
                array = np.asarray(value)
                found = f"{array.dtype}{list(array.shape)}"
                if array.shape == leaf.shape and is_taken_for(array.dtype, leaf.space):
                    return array
        where = f"leaf {leaf.path!r} of the {self._what}" if leaf.path else f"the {self._what}"
        raise InvalidValueError(
            f"{where} is {found}; expected {leaf.dtype}{list(leaf.shape)}, as {describe_space(leaf.space)} requires; "
            "convert the value in the environment, or correct the space"
        )

    def _copy(self, leaf: _Leaf, array: NDArray[Any], values: Value) -> None:
        values = np.asarray(values)
        if values.shape != array.shape or not _can_become(values.dtype, leaf.dtype):
            where = f"leaf {leaf.path!r} of the {self._what}s" if leaf.path else f"the {self._what}s"
            raise InvalidValueError(
                f"{where} are {values.dtype}{list(values.shape)}; expected {leaf.dtype}{list(array.shape)}, one "
                f"{self._what} for each environment; give an array of this shape"
            )
        if leaf.schema is not None:
            where = f"leaf {leaf.path!r} of the {self._what}" if leaf.path else f"the {self._what}"
            check_batch(leaf.schema, values, where)
        array[...] = values


class Buffer:
    """Allocates consecutive arrays in a block of memory. Without a block, only counts bytes."""

    def __init__(self, memory: mmap | bytearray | None) -> None:
        self._memory = memory
        self.n_bytes = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - all that numpy takes
        """Returns the next array of the block. If the memory is new, all values are 0."""
        dtype = np.dtype(dtype)
        start = self.n_bytes
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.n_bytes = start + -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return np.broadcast_to(np.zeros((), dtype), shape)
        return np.ndarray(shape, dtype, buffer=self._memory, offset=start)


class EnvironmentArrays:
    """All values that pass between the caller of a vector environment and its environments.

    The same arguments give the same layout, in every process.

    Args:
        observation_space: The observation space of one environment.
        action_space: The action space of one environment.
        n_envs: Number of environments.
        buffer: The memory of the arrays.

    Attributes:
        observation: The newest observations.
        final_observation: The last observations of episodes, before the reset.
        action: The next actions.
        reward: float32 `[n_envs]`.
        terminated: bool `[n_envs]`.
        truncated: bool `[n_envs]`.
        seed: int64 `[n_envs]`, the last seed of each environment; -1: no seed, or a seed above int64.
        resets: bool `[n_envs]`, the environments that a call of `reset` affects.
        episode_return: float64 `[n_envs]`, the return of the last ended episode.
        episode_length: int64 `[n_envs]`, the number of steps of the last ended episode.
    """

    __slots__ = (
        "action",
        "episode_length",
        "episode_return",
        "final_observation",
        "observation",
        "resets",
        "reward",
        "seed",
        "terminated",
        "truncated",
    )

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], n_envs: int, buffer: Buffer) -> None:
        self.observation = SpaceArrays(observation_space, n_envs, buffer, "observation")
        self.final_observation = SpaceArrays(observation_space, n_envs, buffer, "observation")
        self.action = SpaceArrays(action_space, n_envs, buffer, "action")
        self.reward = buffer.take((n_envs,), np.float32)
        self.terminated = buffer.take((n_envs,), np.bool_)
        self.truncated = buffer.take((n_envs,), np.bool_)
        self.seed = buffer.take((n_envs,), np.int64)
        self.resets = buffer.take((n_envs,), np.bool_)
        self.episode_return = buffer.take((n_envs,), np.float64)
        self.episode_length = buffer.take((n_envs,), np.int64)

    @classmethod
    def n_bytes(cls, observation_space: Space[Any], action_space: Space[Any], n_envs: int) -> int:
        """Returns the size of the arrays in bytes."""
        counter = Buffer(None)
        cls(observation_space, action_space, n_envs, counter)
        return counter.n_bytes


def _leaves(space: Space[Any]) -> list[_Leaf]:
    return [
        _Leaf(path, keys, leaf, np.dtype(leaf.dtype), tuple(leaf.shape or ()), discrete_schema(leaf))
        for (path, leaf), keys in zip(space_leaves(space).items(), _keys(space, ()), strict=True)
    ]


def _keys(space: Space[Any], before: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yields the path of keys to each leaf, in the order of `space_leaves`."""
    if isinstance(space, spaces.Dict):
        for key, member in space.spaces.items():
            yield from _keys(member, (*before, key))
    elif isinstance(space, spaces.Tuple):
        for index, member in enumerate(space.spaces):
            yield from _keys(member, (*before, index))
    else:
        yield before


def _nest(space: Space[Any], values: Iterator[Any]) -> Value:
    if isinstance(space, spaces.Dict):
        return {key: _nest(member, values) for key, member in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(member, values) for member in space.spaces)
    return next(values)


def discrete_schema(leaf: Space[Any]) -> LeafSchema | None:
    """Returns the schema of a discrete leaf space, in int64; None for a Box.

    In int64, because a value too large for the leaf's dtype would wrap around into its range.
    """
    schema = leaf_schema(leaf)
    return replace(schema, dtype=np.dtype(np.int64)) if schema.n_values is not None else None


def check_batch(schema: LeafSchema, values: NDArray[Any], what: str) -> None:
    """Raises if a value of some environment is outside its discrete space.

    Args:
        schema: As `discrete_schema` returns it.
        values: Integers or bools, `[n_envs, *shape]`.
        what: Name of the value of one environment in the message.

    Raises:
        InvalidValueError: If a value is outside the space.
    """
    values = np.asarray(values, np.int64, order="C")
    if schema.are_surely_allowed(values):
        return
    try:
        schema.check_values(values, what=what, axes=("env",), advice="give values of the space")
    except InvalidTensorError as error:
        # Not chained: both errors have the same text, which would be printed twice.
        raise InvalidValueError(str(error)) from None


def _check_discrete(leaf: _Leaf, value: Value, where: str) -> None:
    assert leaf.schema is not None
    low, n_values = leaf.schema.low, leaf.schema.n_values
    if isinstance(low, int) and isinstance(n_values, int) and not leaf.shape and low <= value < low + n_values:
        return
    check_observed(leaf.space, np.asarray(value), where)


def _can_become(given: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    # Integers of any width are valid actions; fractions never become integers.
    return (
        given == expected
        or (given.kind in "biu" and expected.kind in "biu")
        or np.can_cast(given, expected, "same_kind")
    )
