"""Describes the columns of entries, the bytes they take, and checks that rollouts have them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import space_leaves

# int64 `[N]`, numbers of slots in a store, each in [0, n_slots).
Slots: TypeAlias = NDArray[np.int64]

# Bytes of a step that lie in main memory wherever its columns are: the float32 reward, and the flags.
STEP_BOOKKEEPING_BYTES: Final = 5


class StoredBytes(NamedTuple):
    """A number of bytes, by where they may lie.

    Attributes:
        columns: Bytes of observations, actions and log-probabilities, which may lie on the learner's device.
        bookkeeping: Bytes of everything else, in main memory.
    """

    columns: int
    bookkeeping: int

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.columns + self.bookkeeping

    def times(self, n: int) -> "StoredBytes":
        """Returns n times as many bytes."""
        return StoredBytes(n * self.columns, n * self.bookkeeping)


@dataclass(frozen=True, slots=True)
class SubstepLayout:
    """The columns of one substep.

    Attributes:
        observation: The schema of every leaf, by path.
        action: The schema of the action.
    """

    observation: Mapping[str, LeafSchema]
    action: LeafSchema


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """The columns of an environment.

    Attributes:
        substeps: Layouts by substep key.
        n_rollout_steps: T of every rollout.
        log_prob: True if log-probabilities are kept.
        state_size: S, the size of the recurrent state that a rollout brings for its first step; 0: none is kept.
        frame_stack: K, the frames that the policy sees at once; columns hold every frame once, samples stacks.
    """

    substeps: Mapping[str, SubstepLayout]
    n_rollout_steps: int
    log_prob: bool
    state_size: int = 0
    frame_stack: int = 1

    @property
    def stacked(self) -> "EntryLayout":
        """The layout with stacks `[K, ...]` for leaves, except for the action mask; the layout itself if K is 1."""
        if self.frame_stack == 1:
            return self
        return replace(
            self,
            substeps={
                key: replace(
                    substep,
                    observation={
                        path: schema
                        if path == ACTION_MASK
                        else LeafSchema(schema.dtype, (self.frame_stack, *schema.shape))
                        for path, schema in substep.observation.items()
                    },
                )
                for key, substep in self.substeps.items()
            },
            frame_stack=1,
        )

    @property
    def observation_bytes(self) -> int:
        """The bytes of one observation, over all substeps."""
        return sum(schema_bytes(leaf) for substep in self.substeps.values() for leaf in substep.observation.values())

    @property
    def step_bytes(self) -> StoredBytes:
        """The bytes of one step: observation, action, log-probability if kept; float32 reward, one byte of flags."""
        action = sum(schema_bytes(substep.action) for substep in self.substeps.values())
        log_prob = 4 * len(self.substeps) if self.log_prob else 0
        return StoredBytes(self.observation_bytes + action + log_prob, STEP_BOOKKEEPING_BYTES)

    @property
    def state_bytes(self) -> int:
        """The bytes of the recurrent states of one entry, over all substeps."""
        return len(self.substeps) * self.state_size * _STATE_DTYPE.itemsize

    def check(self, rollout: Rollout) -> None:
        """Refuses a rollout with other columns.

        Args:
            rollout: The rollout to be inserted.

        Raises:
            InvalidRolloutError: A column is missing, or has another dtype or shape.
        """
        step_shape = n_steps, n_envs = rollout.reward.shape
        if n_steps != self.n_rollout_steps or not n_envs:
            raise self._error(rollout, f"it is {n_steps} steps of {n_envs} environments")
        if list(rollout.substeps) != list(self.substeps):
            raise self._error(rollout, f"it has the substeps {list(rollout.substeps)}")
        for key, layout in self.substeps.items():
            columns = rollout.substeps[key]
            if not columns.observation.keys() == columns.last_observation.keys() == layout.observation.keys():
                raise self._error(rollout, f"substep {key!r} has the leaves {list(columns.observation)}")
            for path, schema in layout.observation.items():
                where = f"{key}/observation/{path}"
                self._check(rollout, where, columns.observation[path], step_shape, schema)
                self._check(rollout, f"{where} after the last step", columns.last_observation[path], (n_envs,), schema)
                if len(rollout.final_index):
                    n_final = (len(rollout.final_index),)
                    final = columns.final_observation.get(path, _NOTHING)
                    self._check(rollout, f"{where} at final_index", final, n_final, schema)
                if self.frame_stack > 1:
                    previous = (columns.previous_observation or {}).get(path, _NOTHING)
                    n_previous = (n_envs, self.frame_stack - 1)
                    self._check(rollout, f"{where} before the first step", previous, n_previous, schema)
            self._check(rollout, f"{key}/action", columns.action, step_shape, layout.action)
            if self.state_size:
                self._check_state(rollout, key, columns.initial_state)

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

    def _check(
        self,
        rollout: Rollout,
        what: str,
        values: NDArray[np.generic],
        leading: tuple[int, ...],
        schema: LeafSchema,
    ) -> None:
        if values.dtype != schema.dtype or values.shape != (*leading, *schema.shape):
            raise self._error(
                rollout,
                f"{what} is {values.dtype} {list(values.shape)} instead of {schema.dtype} {[*leading, *schema.shape]}",
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
        log_prob: Keep log-probabilities.

    Raises:
        InvalidSpaceError: A space is of an unsupported kind.
    """
    return EntryLayout(
        substeps={
            key: SubstepLayout(
                observation={path: leaf_schema(leaf) for path, leaf in space_leaves(substep.observation).items()},
                action=leaf_schema(substep.action),
            )
            for key, substep in rollout_shape.spaces.items()
        },
        n_rollout_steps=rollout_shape.n_rollout_steps,
        log_prob=log_prob,
        state_size=rollout_shape.state_size,
        frame_stack=rollout_shape.frame_stack,
    )


def schema_bytes(schema: LeafSchema) -> int:
    """Returns the bytes of one value of a column."""
    return schema.dtype.itemsize * int(np.prod(schema.shape, dtype=np.int64))


_NOTHING = np.zeros(0)
_STATE_DTYPE = np.dtype(np.float32)
