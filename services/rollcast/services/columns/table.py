"""The table of a rollout's columns and their properties, for all code that handles rollouts.

A new column needs a row here, a field of `columns.Columns`, and a field of its message. The column also needs code that
records it, and code that learns from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.spaces.leaf_schema import BOOL, FLOAT32, INT32, LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import SubstepSpaces, space_leaves

# Names of a column's leading dimensions, for messages: columns of steps, of trajectories, of final observations, and of
# the frames before a rollout.
STEP_AXES: Final = ("t", "b")
LAST_AXES: Final = ("b",)
FINAL_AXES: Final = ("final",)
PREVIOUS_AXES: Final = ("b", "k")

# Returns the schema of one entry of each of a column's arrays, by path; "" for a column of one array. Empty: such
# rollouts lack the column.
Leaves: TypeAlias = Callable[[SubstepSpaces, RolloutShape], Mapping[str, LeafSchema]]


class Padding(Enum):
    """The content of padding rows after the last step, which are not transitions."""

    ZERO = "zero"
    LAST_ROW = "last row"
    LAST_OBSERVATION = "last observation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: an array, or an array for each leaf of the observation space.

    Attributes:
        name: The column's field in values and messages.
        axes: The names of the leading dimensions.
        leaves: Returns the schemas of the arrays.
        dtype: The dtype of the arrays; None: the dtype of the space.
        is_tree: True: one array for each leaf of the observation space.
        is_optional: True: rollouts may omit it.
        absence: The reason why all rollouts of a learner lack the column; empty: they have it.
        padding: The content of padding rows, for columns of steps.
    """

    name: str
    axes: tuple[str, ...]
    leaves: Leaves
    dtype: np.dtype[Any] | None = None
    is_tree: bool = False
    is_optional: bool = False
    absence: str = ""
    padding: Padding = Padding.ZERO

    def arrays(self, holder: object) -> Mapping[str, Any]:
        """Returns this column's arrays in `holder`, by path; empty if `holder` lacks this column."""
        value = getattr(holder, self.name)
        if value is None:
            return {}
        arrays: Mapping[str, Any] = value if self.is_tree else {"": value}
        return arrays

    def field(self, arrays: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a mapping, an array, or None
        """Returns the value of the column's field, given its arrays; the inverse of `arrays`."""
        if not arrays and (self.absence or self.is_optional):
            return None
        return arrays if self.is_tree else arrays.get("")


def _observation(spaces: SubstepSpaces, rollout_shape: RolloutShape) -> Mapping[str, LeafSchema]:
    del rollout_shape
    return {path: leaf_schema(leaf) for path, leaf in space_leaves(spaces.observation).items()}


def _action(spaces: SubstepSpaces, rollout_shape: RolloutShape) -> Mapping[str, LeafSchema]:
    del rollout_shape
    return {"": leaf_schema(spaces.action)}


def _state(spaces: SubstepSpaces, rollout_shape: RolloutShape) -> Mapping[str, LeafSchema]:
    del spaces
    return {"": LeafSchema(FLOAT32, (rollout_shape.state_size,))} if rollout_shape.state_size else {}


def _earlier_frames(spaces: SubstepSpaces, rollout_shape: RolloutShape) -> Mapping[str, LeafSchema]:
    return _observation(spaces, rollout_shape) if rollout_shape.frame_stack > 1 else {}


def _array(name: str, axes: tuple[str, ...], dtype: np.dtype[Any], *shape: int, is_optional: bool = False) -> Column:
    """Returns a column of a single array that every learner's rollouts may have."""
    leaves = {"": LeafSchema(dtype, shape)}
    return Column(name=name, axes=axes, dtype=dtype, leaves=lambda _spaces, _shape: leaves, is_optional=is_optional)


# The columns of a substep, `columns.Columns`, in the order of the fields of `rollcast.v1.SubstepColumns`.
COLUMNS: Final = (
    Column(name="observation", axes=STEP_AXES, leaves=_observation, is_tree=True, padding=Padding.LAST_OBSERVATION),
    Column(name="action", axes=STEP_AXES, leaves=_action, padding=Padding.LAST_ROW),
    _array("log_prob", STEP_AXES, FLOAT32),
    Column(name="last_observation", axes=LAST_AXES, leaves=_observation, is_tree=True),
    Column(name="final_observation", axes=FINAL_AXES, leaves=_observation, is_tree=True),
    Column(
        name="initial_state",
        axes=LAST_AXES,
        dtype=FLOAT32,
        leaves=_state,
        absence="the learner's policy is not recurrent",
    ),
    Column(
        name="previous_observation",
        axes=PREVIOUS_AXES,
        leaves=_earlier_frames,
        is_tree=True,
        absence="the learner's policy takes single frames",
    ),
)
COLUMNS_BY_NAME: Final = {column.name: column for column in COLUMNS}
REWARD: Final = _array("reward", STEP_AXES, FLOAT32)
# The columns that a rollout has once, in the order of the fields of `rollcast.v1.Rollout`.
COMMON_COLUMNS: Final = (
    REWARD,
    _array("terminated", STEP_AXES, BOOL),
    _array("truncated", STEP_AXES, BOOL),
    _array("valid", STEP_AXES, BOOL, is_optional=True),
    _array("final_index", FINAL_AXES, INT32, 2, is_optional=True),
)
COMMON_STEPS: Final = tuple(column.name for column in COMMON_COLUMNS if column.axes == STEP_AXES)
