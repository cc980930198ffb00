"""Describes the columns of entries and their size in bytes, and checks the columns of rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.services.columns.columns import Columns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import COLUMNS, FINAL_AXES, LAST_AXES, PREVIOUS_AXES, STEP_AXES, Column
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.leaf_schema import LeafSchema

# int64 `[N]`, numbers of slots in a store, each in [0, n_slots).
Slots: TypeAlias = NDArray[np.int64]

# The columns of steps, the observations first.
STEPS: Final = tuple(column.name for column in COLUMNS if column.axes == STEP_AXES)

# Bytes of a step that lie in main memory wherever its columns are: the float32 reward, and the flags.
STEP_BOOKKEEPING_BYTES: Final = 5


class StoredBytes(NamedTuple):
    """A number of bytes in two kinds of memory.

    Attributes:
        columns: Bytes of observations, actions and log-probabilities, which may lie on the learner's device.
        bookkeeping: Bytes of all other arrays, in main memory.
    """

    columns: int
    bookkeeping: int

    @property
    def total(self) -> int:
        """The total number of bytes."""
        return self.columns + self.bookkeeping

    def times(self, n: int) -> "StoredBytes":
        """Returns n times as many bytes."""
        return StoredBytes(n * self.columns, n * self.bookkeeping)


@dataclass(frozen=True)
class EntryLayout:
    """The columns of an environment's entries.

    Attributes:
        substeps: The schema of each stored column's entry, by substep key.
        n_rollout_steps: T of every rollout.
        state_size: S, the size of the recurrent state at a rollout's first step; 0: none is stored.
        frame_stack: K, the number of stacked frames. Columns hold single frames, samples hold stacks.
    """

    substeps: Mapping[str, Columns[LeafSchema]]
    n_rollout_steps: int
    state_size: int = 0
    frame_stack: int = 1

    @property
    def stacked(self) -> "EntryLayout":
        """The layout with stacks `[K, ...]` for leaves, except for the action mask; the layout itself if K is 1."""
        if self.frame_stack == 1:
            return self
        substeps = {key: _stacked(columns, self.frame_stack) for key, columns in self.substeps.items()}
        return replace(self, substeps=substeps, frame_stack=1)

    def arrays(self, holder: Any, *columns: str) -> list[Any]:  # noqa: ANN401 - a rollout, a sample, or a layout
        """Lists the arrays of columns in the order of all arrays of entries.

        Args:
            holder: An object with `substeps` that have these columns.
            columns: The names of the columns.

        Returns:
            The arrays, ordered by column, then by substep, then by leaf of the spaces.
        """
        substeps = holder.substeps
        return [
            getattr(substeps[key], name) if path is None else getattr(substeps[key], name)[path]
            for name in columns
            for key, path in self._places[name]
        ]

    @cached_property
    def _places(self) -> Mapping[str, Sequence[tuple[str, str | None]]]:
        """The substeps and paths of each column's arrays; an array without a leaf has no path."""
        return {
            column.name: [
                (key, path if column.is_tree else None)
                for key, schemas in self.substeps.items()
                for path in column.arrays(schemas)
            ]
            for column in COLUMNS
        }

    @property
    def observation_bytes(self) -> int:
        """The bytes of one observation, over all substeps."""
        return self._bytes("observation")

    @property
    def step_bytes(self) -> StoredBytes:
        """The bytes of one step: its columns, a float32 reward, and one byte of flags."""
        return StoredBytes(self._bytes(*STEPS), STEP_BOOKKEEPING_BYTES)

    @property
    def state_bytes(self) -> int:
        """The bytes of the recurrent states of one entry, over all substeps."""
        return self._bytes("initial_state")

    def _bytes(self, *columns: str) -> int:
        return sum(schema_bytes(schema) for schema in self.arrays(self, *columns))

    def check(self, rollout: Rollout) -> None:
        """Refuses a rollout whose columns do not match.

        Args:
            rollout: The rollout to insert.

        Raises:
            InvalidRolloutError: A column is missing, or has another dtype or shape.
        """
        n_steps, n_envs = rollout.reward.shape
        if n_steps != self.n_rollout_steps or not n_envs:
            raise self._error(rollout, f"it is {n_steps} steps of {n_envs} environments")
        if list(rollout.substeps) != list(self.substeps):
            raise self._error(rollout, f"it has the substeps {list(rollout.substeps)}")
        for key, layout in self.substeps.items():
            columns = rollout.substeps[key]
            if not columns.observation.keys() == columns.last_observation.keys() == layout.observation.keys():
                raise self._error(rollout, f"substep {key!r} has the leaves {list(columns.observation)}")
        # In the order of `_WHERE`.
        leading = ((n_steps, n_envs), (n_envs,), (len(rollout.final_index),), (n_envs, self.frame_stack - 1))
        for key, column, path, axes, schema in self._checks:
            if not leading[axes][0]:
                continue
            values = getattr(rollout.substeps[key], column.name)
            if column.is_tree:
                values = _NOTHING if values is None else values.get(path, _NOTHING)
            elif column.name == "initial_state":
                self._check_state(rollout, key, values)
                continue
            shape = leading[axes] + schema.shape
            if values.dtype != schema.dtype or values.shape != shape:
                what = f"observation/{path}" if column.is_tree else column.name
                found = f"{values.dtype} {list(values.shape)} instead of {schema.dtype} {list(shape)}"
                raise self._error(rollout, f"{key}/{what}{list(_WHERE.values())[axes]} is {found}")

    @cached_property
    def _checks(self) -> Sequence[tuple[str, Column, str, int, LeafSchema]]:
        """The arrays that `check` compares: substep, column, path, number of axes, and schema."""
        axes = list(_WHERE)
        return [
            (key, column, path, axes.index(column.axes), schema)
            for key, schemas in self.substeps.items()
            for column, path, schema in schemas.leaves()
        ]

    def _check_state(self, rollout: Rollout, key: str, state: NDArray[np.float32] | None) -> None:
        expected = (rollout.n_envs, self.state_size)
        if state is None or state.dtype != _STATE_DTYPE or state.shape != expected:
            found = "no recurrent state" if state is None else f"a recurrent state of {state.dtype} {list(state.shape)}"
            raise InvalidRolloutError(
                f"rollout {rollout.sequence} of {rollout.actor_id!r} does not fit the replay buffer: substep {key!r} "
                f"has {found}; expected float32 {list(expected)}, the states with which the policy acted first; play "
                f"it with a policy of the same recurrence and recurrent_size, in rollouts of {self.n_rollout_steps} "
                "steps"
            )

    def _error(self, rollout: Rollout, wrong: str) -> InvalidRolloutError:
        return InvalidRolloutError(
            f"rollout {rollout.sequence} of {rollout.actor_id!r} does not fit the replay buffer: {wrong}; expected "
            f"{self.n_rollout_steps} steps and the columns {sorted(self.substeps)} of the spaces the buffer was made "
            "with; make both with the same environment and n_rollout_steps"
        )


def make_layout(rollout_shape: RolloutShape, *, log_prob: bool) -> EntryLayout:
    """Makes the layout of an environment's entries.

    Args:
        rollout_shape: The shape of the rollouts to keep, of any number of environments.
        log_prob: True: log-probabilities are stored.

    Raises:
        InvalidSpaceError: A space is of an unsupported kind.
    """
    return EntryLayout(
        substeps={
            key: Columns[LeafSchema].of(
                lambda column, substep=substep: (
                    {}  # type: ignore[misc]  # mypy infers no type of such a lambda
                    if column.name == "log_prob" and not log_prob
                    else column.leaves(substep, rollout_shape)
                )
            )
            for key, substep in rollout_shape.spaces.items()
        },
        n_rollout_steps=rollout_shape.n_rollout_steps,
        state_size=rollout_shape.state_size,
        frame_stack=rollout_shape.frame_stack,
    )


def _stacked(columns: Columns[LeafSchema], frame_stack: int) -> Columns[LeafSchema]:
    def stacked(column: Column) -> Mapping[str, LeafSchema]:
        if column.axes == PREVIOUS_AXES:
            return {}
        if not column.is_tree:
            return column.arrays(columns)
        return {
            path: schema if path == ACTION_MASK else LeafSchema(schema.dtype, (frame_stack, *schema.shape))
            for path, schema in column.arrays(columns).items()
        }

    return Columns[LeafSchema].of(stacked)


def schema_bytes(schema: LeafSchema) -> int:
    """Returns the bytes of one value of a column."""
    return schema.dtype.itemsize * int(np.prod(schema.shape, dtype=np.int64))


_NOTHING = np.zeros(0)
_WHERE: Final = {
    STEP_AXES: "",
    LAST_AXES: " after the last step",
    FINAL_AXES: " at final_index",
    PREVIOUS_AXES: " before the first step",
}
_STATE_DTYPE = np.dtype(np.float32)
