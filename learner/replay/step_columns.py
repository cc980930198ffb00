"""The columns of steps, row by row, and the flags that are packed into one byte of a row."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learner.replay.layout import EntryLayout
from learner.replay.samples import Room
from services.rollouts import Rollout

# The lowest bit and the highest become booleans in one numpy call each.
TERMINATED: Final = 1
# The row is a transition.
STEP: Final = 2
# The transition can be drawn; not so when it has been drawn `max_times_sampled` times.
ENTRY: Final = 4
TRUNCATED: Final = 8

# numpy takes half as long to work with an array of no dimension as with a Python int.
_TERMINATED: Final = np.array(TERMINATED, np.uint8)
_TRUNCATED: Final = np.array(TRUNCATED, np.uint8)


class StepColumns:
    """Arrays `[n_rows, ...]` for everything a step has, allocated once. The buffer's lock guards them.

    Attributes:
        steps: Observations, actions, log-probabilities of all substeps, and the reward, in the order of
            `Room.step_targets`.
        observations: The first of them, in the order of `Room.next_targets`.
        reward: The last of them, float32.
        flags: uint8.
    """

    __slots__ = ("flags", "observations", "reward", "steps")

    def __init__(self, layout: EntryLayout, n_rows: int) -> None:
        """Allocates `n_rows * layout.step_bytes`.

        Args:
            layout: Of the entries.
            n_rows: How many.
        """
        substeps = layout.substeps.values()
        schemas = [schema for substep in substeps for schema in substep.observation.values()]
        n_observations = len(schemas)
        schemas += [substep.action for substep in substeps]
        self.steps: list[NDArray[Any]] = [np.zeros((n_rows, *schema.shape), schema.dtype) for schema in schemas]
        if layout.log_prob:
            self.steps += [np.zeros(n_rows, np.float32) for _ in substeps]
        self.reward = np.zeros(n_rows, np.float32)
        self.steps.append(self.reward)
        self.observations = self.steps[:n_observations]
        self.flags = np.zeros(n_rows, np.uint8)

    def gather(self, rows: NDArray[np.int64], room: Room) -> None:
        """Copies steps into a room, flags and all.

        Args:
            rows: int64 `[T * B]`, each in [0, n_rows).
            room: Where to.
        """
        for column, target in zip(self.steps, room.step_targets, strict=True):
            column.take(rows, 0, target, "clip")  # "raise" would gather into a buffer first
        self.gather_flags(rows, room)

    def gather_flags(self, rows: NDArray[np.int64], room: Room) -> None:
        """Copies flags into a room: `flags`, `terminated` and `truncated`.

        Args:
            rows: int64 `[T * B]`, each in [0, n_rows).
            room: Where to.
        """
        self.flags.take(rows, 0, room.flags, "clip")
        np.bitwise_and(room.flags, _TERMINATED, room.terminated)
        np.greater_equal(room.flags, _TRUNCATED, room.truncated)


def step_sources(rollout: Rollout, layout: EntryLayout) -> list[NDArray[Any]]:
    """A rollout's columns `[T, B, ...]` in the order of `StepColumns.steps`."""
    columns = [rollout.substeps[key] for key in layout.substeps]
    sources: list[NDArray[Any]] = [
        substep.observation[path]
        for substep, schemas in zip(columns, layout.substeps.values(), strict=True)
        for path in schemas.observation
    ]
    sources += [substep.action for substep in columns]
    if layout.log_prob:
        sources += [substep.log_prob for substep in columns]
    return [*sources, rollout.reward]


def last_sources(rollout: Rollout, layout: EntryLayout) -> list[NDArray[Any]]:
    """A rollout's last observations `[B, ...]` in the order of `StepColumns.observations`."""
    return [
        rollout.substeps[key].last_observation[path]
        for key, schemas in layout.substeps.items()
        for path in schemas.observation
    ]


def final_sources(rollout: Rollout, layout: EntryLayout) -> list[NDArray[Any]]:
    """A rollout's final observations `[N, ...]` in the order of `StepColumns.observations`."""
    return [
        rollout.substeps[key].final_observation[path]
        for key, schemas in layout.substeps.items()
        for path in schemas.observation
    ]


def pack_flags(rollout: Rollout) -> NDArray[np.uint8]:
    """A rollout's flags, uint8 `[T, B]`."""
    flags: NDArray[np.uint8] = rollout.truncated.astype(np.uint8)
    flags *= TRUNCATED
    flags += rollout.terminated
    flags += STEP | ENTRY
    if rollout.valid is not None:
        flags *= rollout.valid
    return flags
