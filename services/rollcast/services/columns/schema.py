"""Describes the columns of a rollout: their names, dtypes, shapes and sizes, as agreed at Join."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rollcast.services.columns.columns import Columns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import (
    COMMON_COLUMNS,
    FINAL_AXES,
    LAST_AXES,
    PREVIOUS_AXES,
    STEP_AXES,
    Column,
)
from rollcast.services.spaces.leaf_schema import LeafSchema


@functools.lru_cache(maxsize=4096)
def column_name(key: str, column: str, path: str = "") -> str:
    """Returns the name of a substep's column, `"0/observation/camera"` or `"0/action"`."""
    return f"{key}/{column}/{path}" if path else f"{key}/{column}"


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """The name, dtype and shape of one column in every rollout.

    Attributes:
        name: The column's path in the rollout, for example `"0/observation/camera"` or `"reward"`.
        leaf: The dtype, shape and allowed values of one entry.
        axes: The names of the leading dimensions.
        shape: The whole shape. A first dimension of -1 stands for N, the number of final observations.
        dtype_number: The dtype as a rollcast.v1.DataType.
        n_bytes: The size in bytes; for a column of final observations, the size of one row.
    """

    name: str
    leaf: LeafSchema
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype_number: int
    n_bytes: int

    @classmethod
    def of(cls, name: str, leaf: LeafSchema, axes: tuple[str, ...], leading: tuple[int, ...]) -> Self:
        """Makes a schema. `leading` has the sizes of the dimensions before those of one entry."""
        # imported here, because it loads protobuf, and an actor imports this module before its first step
        from rollcast.services.wire.tensors import DTYPE_NUMBERS

        shape = (*leading, *leaf.shape)
        n_bytes = math.prod(dimension for dimension in shape if dimension >= 0) * leaf.dtype.itemsize
        return cls(name, leaf, axes, shape, DTYPE_NUMBERS[leaf.dtype], n_bytes)


def substep_schemas(
    key: str, rollout_shape: RolloutShape, *, n_trajectories: int | None = None
) -> Columns[ColumnSchema]:
    """Returns the schemas of a substep's columns.

    Args:
        key: The substep.
        rollout_shape: The shape of the rollouts.
        n_trajectories: B; None: the B of the rollouts.
    """
    leading = _leading_shapes(key, rollout_shape, n_trajectories)

    def schemas(column: Column) -> dict[str, ColumnSchema]:
        return {
            path: ColumnSchema.of(column_name(key, column.name, path), leaf, column.axes, leading[column.axes])
            for path, leaf in column.leaves(rollout_shape.spaces[key], rollout_shape).items()
        }

    return Columns.of(schemas)


def common_schemas(
    key: str, rollout_shape: RolloutShape, *, n_trajectories: int | None = None
) -> dict[str, ColumnSchema]:
    """Returns the schemas of the common columns of a substep's rollout; see `substep_schemas`."""
    leading = _leading_shapes(key, rollout_shape, n_trajectories)
    return {
        column.name: ColumnSchema.of(column.name, leaf, column.axes, leading[column.axes])
        for column in COMMON_COLUMNS
        for leaf in column.leaves(rollout_shape.spaces[key], rollout_shape).values()
    }


def _leading_shapes(
    key: str, rollout_shape: RolloutShape, n_trajectories: int | None
) -> Mapping[tuple[str, ...], tuple[int, ...]]:
    n_steps, n = rollout_shape.step_shape(key)
    n = n if n_trajectories is None else n_trajectories
    return {
        STEP_AXES: (n_steps, n),
        LAST_AXES: (n,),
        FINAL_AXES: (-1,),
        PREVIOUS_AXES: (n, rollout_shape.frame_stack - 1),
    }
