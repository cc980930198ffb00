"""Describes the columns of a rollout: their names, dtypes, shapes and sizes, as agreed at Join."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.spaces.leaf_schema import FLOAT32, LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import space_leaves

# Names of the leading dimensions of the kinds of columns, for messages.
STEP_AXES: Final = ("t", "b")
LAST_AXES: Final = ("b",)
FINAL_AXES: Final = ("final",)
# Of the frames before a rollout.
PREVIOUS_AXES: Final = ("b", "k")


def column_name(key: str, column: str, path: str = "") -> str:
    """Returns the name of a substep's column, `"0/observation/camera"` or `"0/action"`."""
    return f"{key}/{column}/{path}" if path else f"{key}/{column}"


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """The name, dtype and shape that one column has in every rollout.

    Attributes:
        name: Its place in the rollout: `"0/observation/camera"`, `"reward"`.
        leaf: The dtype, shape and allowed values of one entry.
        axes: Names of its leading dimensions.
        shape: Its whole shape; a first dimension of -1 stands for the N final observations.
        dtype_number: Its rollcast.v1.DataType.
        n_bytes: Its size; if N is open, the size of one row.
    """

    name: str
    leaf: LeafSchema
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype_number: int
    n_bytes: int

    @classmethod
    def of(cls, name: str, leaf: LeafSchema, axes: tuple[str, ...], leading: tuple[int, ...]) -> Self:
        """Makes a schema; `leading` are the dimensions before those of one entry, the rest as the attributes."""
        # imported here: it loads protobuf, and an actor imports this module before its first step
        from rollcast.services.wire.tensors import DTYPE_NUMBERS

        shape = (*leading, *leaf.shape)
        n_bytes = math.prod(dimension for dimension in shape if dimension >= 0) * leaf.dtype.itemsize
        return cls(name, leaf, axes, shape, DTYPE_NUMBERS[leaf.dtype], n_bytes)


@dataclass(frozen=True, slots=True)
class SubstepSchema:
    """The schemas of one substep's columns; those of observations by path, in the order of the space.

    `initial_state` is None if the policy is not recurrent; `previous_observation` is empty if it sees single frames.
    """

    observation: Mapping[str, ColumnSchema]
    action: ColumnSchema
    log_prob: ColumnSchema
    last_observation: Mapping[str, ColumnSchema]
    final_observation: Mapping[str, ColumnSchema]
    initial_state: ColumnSchema | None
    previous_observation: Mapping[str, ColumnSchema]

    @classmethod
    def of(cls, key: str, rollout_shape: RolloutShape) -> Self:
        """Makes the schemas of a substep."""
        spaces = rollout_shape.spaces[key]
        leaves = {path: leaf_schema(leaf) for path, leaf in space_leaves(spaces.observation).items()}

        def observation(column: str, axes: tuple[str, ...], leading: tuple[int, ...]) -> dict[str, ColumnSchema]:
            return {
                path: ColumnSchema.of(column_name(key, column, path), leaf, axes, leading)
                for path, leaf in leaves.items()
            }

        step_shape = _, n_trajectories = rollout_shape.step_shape(key)
        return cls(
            observation=observation("observation", STEP_AXES, step_shape),
            action=ColumnSchema.of(column_name(key, "action"), leaf_schema(spaces.action), STEP_AXES, step_shape),
            log_prob=ColumnSchema.of(column_name(key, "log_prob"), LeafSchema(FLOAT32), STEP_AXES, step_shape),
            last_observation=observation("last_observation", LAST_AXES, (n_trajectories,)),
            final_observation=observation("final_observation", FINAL_AXES, (-1,)),
            initial_state=ColumnSchema.of(
                column_name(key, "initial_state"),
                LeafSchema(FLOAT32, (rollout_shape.state_size,)),
                LAST_AXES,
                (n_trajectories,),
            )
            if rollout_shape.state_size
            else None,
            previous_observation=observation(
                "previous_observation", PREVIOUS_AXES, (n_trajectories, rollout_shape.frame_stack - 1)
            )
            if rollout_shape.frame_stack > 1
            else {},
        )
