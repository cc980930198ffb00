"""Defines the columns of one substep, with arrays of any kind, and operations on all columns."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.table import (
    COLUMNS,
    COMMON_COLUMNS,
    FINAL_AXES,
    LAST_AXES,
    PREVIOUS_AXES,
    STEP_AXES,
    Column,
)

# Arrays, tensors, or their schemas or layouts.
A = TypeVar("A")
C = TypeVar("C", bound="Columns[Any]")

# The index into a column's arrays, by the axes of the column.
Index = Mapping[tuple[str, ...], Any]

# Returns the values of all columns in one call, in the order of the table. `Column.arrays` needs a call for each
# column.
column_fields: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(column.name for column in COLUMNS))
common_fields: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(column.name for column in COMMON_COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(Generic[A]):
    """The columns of one substep. `SubstepColumns` documents them, and `table.COLUMNS` has their properties."""

    observation: Mapping[str, A]
    action: A
    log_prob: A | None
    last_observation: Mapping[str, A]
    final_observation: Mapping[str, A]
    initial_state: A | None = None
    previous_observation: Mapping[str, A] | None = None

    @classmethod
    def of(cls, arrays: Callable[[Column], Mapping[str, A]]) -> Self:
        """Makes columns.

        Args:
            arrays: Returns the arrays of a column by path ("" for a single array); empty if the column is absent.
        """
        return cls(**{column.name: column.field(arrays(column)) for column in COLUMNS})

    def map(self, convert: Callable[[A], Any], kind: type[C], **changes: Any) -> C:  # noqa: ANN401 - columns
        """Converts every array, in a fixed order. Returns columns of another kind, with `changes` of fields."""
        made: dict[str, Any] = {}
        for column, value in zip(COLUMNS, column_fields(self), strict=True):
            if value is None:
                made[column.name] = None
            elif column.is_tree:
                made[column.name] = {path: convert(leaf) for path, leaf in value.items()}
            else:
                made[column.name] = convert(value)
        return kind(**made | changes)

    def leaves(self) -> list[tuple[Column, str, A]]:
        """Lists all arrays, with their columns and paths, in the order of `map`."""
        listed: list[tuple[Column, str, A]] = []
        for column, value in zip(COLUMNS, column_fields(self), strict=True):
            if value is not None:
                leaves = value.items() if column.is_tree else (("", value),)
                listed += [(column, path, leaf) for path, leaf in leaves]
        return listed

    def flat(self) -> list[A]:
        """Lists all arrays, in the order of `map`."""
        listed: list[A] = []
        for column, value in zip(COLUMNS, column_fields(self), strict=True):
            if value is not None:
                listed += value.values() if column.is_tree else (value,)
        return listed

    def filled(self, arrays: Iterable[Any], kind: type[C]) -> C:
        """Returns columns of this layout with the given arrays, in the order of `flat`."""
        following = iter(arrays)
        return self.map(lambda _: next(following), kind)

    def with_axes(self, *axes: tuple[str, ...]) -> list[A]:
        """Lists the arrays of the columns that have one of these axes, in the order of `map`."""
        columns = (column for column in COLUMNS if column.axes in axes)
        return [leaf for column in columns for leaf in column.arrays(self).values()]

    def picked(self, values: Any, kind: type[C]) -> C:  # noqa: ANN401 - a mapping, or a sequence
        """Replaces each leaf, a name or a number, by the element of `values` that it selects."""
        made: dict[str, Any] = {}
        for column, value in zip(COLUMNS, column_fields(self), strict=True):
            if value is None:
                made[column.name] = None
            elif column.is_tree:
                made[column.name] = {path: values[name] for path, name in value.items()}
            else:
                made[column.name] = values[value]
        return kind(**made)

    def take(self, index: Index) -> Self:
        """Returns parts of the arrays: `array[index[axes]]` for each column's axes."""
        made: dict[str, Any] = {}
        for column, value in zip(COLUMNS, column_fields(self), strict=True):
            rows = index[column.axes]
            if value is None:
                made[column.name] = None
            elif column.is_tree:
                made[column.name] = {path: leaf[rows] for path, leaf in value.items()}
            else:
                made[column.name] = value[rows]
        return type(self)(**made)


class CopyInto:
    """Copies trajectories into columns of arrays. The constructor looks up the target arrays once for all copies.

    Args:
        room: The target columns. Columns that are missing here are not copied.
    """

    def __init__(self, room: Columns[NDArray[Any]]) -> None:
        number = {column.name: number for number, column in enumerate(COLUMNS)}
        self._plan = [
            (number[column.name], path if column.is_tree else None, column.axes == STEP_AXES, array)
            for column, path, array in room.leaves()
        ]

    def __call__(self, columns: Columns[NDArray[Any]], target: slice, source: slice | NDArray[np.int64]) -> None:
        """Copies the trajectories `source` to the positions `target`."""
        fields = column_fields(columns)
        for number, path, is_by_step, room in self._plan:
            values = fields[number] if path is None else fields[number][path]
            if is_by_step:
                room[:, target] = values[:, source]
            else:
                room[target] = values[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstepColumns(Columns[NDArray[Any]]):
    """The observations and actions of one substep.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the order of the space.
        action: `[T, B, ...]`.
        log_prob: float32 `[T, B]`, the log-probability (density) of the action under the policy that acted.
        last_observation: `[B, ...]` for every leaf, the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the last observation of the episodes that ended at
            `Rollout.final_index`.
        initial_state: float32 `[B, S]`, the recurrent state with which the policy acted in the first valid row of each
            trajectory; None if the policy is not recurrent. `rollcast.v1.SubstepColumns` defines the states of later
            rows.
        previous_observation: `[B, K - 1, ...]` for every leaf, the frames before the first valid row of each
            trajectory, the oldest first. If that row begins an episode, these frames repeat its observation. None if
            the policy takes single frames.
    """

    log_prob: NDArray[np.float32]


def of_trajectories(trajectories: Any, finals: Any) -> Index:  # noqa: ANN401 - what indexes an array
    """Returns an index that selects some trajectories and their final observations, for `Columns.take`."""
    steps = (slice(None), trajectories)
    return {STEP_AXES: steps, LAST_AXES: trajectories, PREVIOUS_AXES: trajectories, FINAL_AXES: finals}


def take_common(holder: object, index: Index) -> dict[str, Any]:
    """Returns the selected parts of a rollout's or batch's common columns, by field; see `Columns.take`."""
    return {
        column.name: None if value is None else value[index[column.axes]]
        for column, value in zip(COMMON_COLUMNS, common_fields(holder), strict=True)
    }
