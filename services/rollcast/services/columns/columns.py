"""The columns of one substep as a value, with arrays of any kind, and the operations on all of them."""

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

# By the axes of columns, what to take of their arrays.
Index = Mapping[tuple[str, ...], Any]

# The values of all columns, in the order of the table: one call, where `Column.arrays` is one for each.
column_fields: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(column.name for column in COLUMNS))
common_fields: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(column.name for column in COMMON_COLUMNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(Generic[A]):
    """The columns of one substep; `SubstepColumns` documents them. `table.COLUMNS` says how each is treated."""

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
            arrays: Returns the arrays of a column by path, "" if it is one array; none if there are none.
        """
        return cls(**{column.name: column.field(arrays(column)) for column in COLUMNS})

    def map(self, convert: Callable[[A], Any], kind: type[C], **changes: Any) -> C:  # noqa: ANN401 - columns
        """Converts every array, always in the same order, into columns of another kind; `changes` replace some."""
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
        """Returns columns of this layout with other arrays, which are in the order of `flat`."""
        following = iter(arrays)
        return self.map(lambda _: next(following), kind)

    def with_axes(self, *axes: tuple[str, ...]) -> list[A]:
        """Lists the arrays of the columns with one of these axes, in the order of `map`."""
        columns = (column for column in COLUMNS if column.axes in axes)
        return [leaf for column in columns for leaf in column.arrays(self).values()]

    def picked(self, values: Any, kind: type[C]) -> C:  # noqa: ANN401 - a mapping, or a sequence
        """Returns columns of the `values` that have these names or numbers."""
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
    """Copies trajectories into columns of arrays. The targets are found once, because every rollout is copied.

    Args:
        room: The columns to copy into; columns that it lacks are not copied.
    """

    def __init__(self, room: Columns[NDArray[Any]]) -> None:
        number = {column.name: number for number, column in enumerate(COLUMNS)}
        self._plan = [
            (number[column.name], path if column.is_tree else None, column.axes == STEP_AXES, array)
            for column, path, array in room.leaves()
        ]

    def __call__(self, columns: Columns[NDArray[Any]], target: slice, source: slice | NDArray[np.int64]) -> None:
        """Copies the trajectories `source` to the places `target`."""
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
        log_prob: float32 `[T, B]`, log-probability (density) of the action under the policy that acted.
        last_observation: `[B, ...]` for every leaf, the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the true last observation of the episodes that ended at
            `Rollout.final_index`.
        initial_state: float32 `[B, S]`, the state with which a recurrent policy acted in the first valid row of each
            trajectory; None if the policy is not recurrent. `rollcast.v1.SubstepColumns` defines the states of later
            rows.
        previous_observation: `[B, K - 1, ...]` for every leaf, the frames before the first valid row of each
            trajectory, the oldest first: that row's own observation where it begins an episode. None if the policy
            sees single frames.
    """

    log_prob: NDArray[np.float32]


def of_trajectories(trajectories: Any, finals: Any) -> Index:  # noqa: ANN401 - what indexes an array
    """Returns the index of some trajectories, and of their final observations, for `Columns.take`."""
    steps = (slice(None), trajectories)
    return {STEP_AXES: steps, LAST_AXES: trajectories, PREVIOUS_AXES: trajectories, FINAL_AXES: finals}


def take_common(holder: object, index: Index) -> dict[str, Any]:
    """Returns parts of the columns that a rollout or a batch has once, by field; see `Columns.take`."""
    return {
        column.name: None if value is None else value[index[column.axes]]
        for column, value in zip(COMMON_COLUMNS, common_fields(holder), strict=True)
    }
