"""Checks the values of a rollout in the actor. The errors are the learner's, with environment and seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.schema import column_name
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import COLUMNS, REWARD, Column
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.leaf_schema import LeafSchema
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation

# Observations come first, because wrong observations cause other wrong values.
_FIRST = ("observation", "last_observation", "final_observation", "reward")
_CHECKED = sorted((*COLUMNS, REWARD), key=lambda column: column.name not in _FIRST)


class _Column(NamedTuple):
    """An array to check: its name, position and schema."""

    name: str
    column: Column
    path: str
    leaf: LeafSchema


class ValueCheck:
    """Refuses rollouts that a learner would refuse. The error contains the environment and its seed. Thread-safe.

    Args:
        spaces: The spaces by substep key.
    """

    def __init__(self, spaces: EnvironmentSpaces) -> None:
        self._n_agents = {key: substep.n_agents for key, substep in spaces.items()}
        # A recurrent state and earlier frames have the same check for every size.
        everything = RolloutShape(spaces, n_rollout_steps=1, state_size=1, frame_stack=2)
        self._columns = {
            key: [
                _Column(column.name if column is REWARD else column_name(key, column.name, path), column, path, leaf)
                for column in _CHECKED
                for path, leaf in column.leaves(substep, everything).items()
                if leaf.is_checked
            ]
            for key, substep in spaces.items()
        }

    def __call__(self, rollout: Rollout) -> None:
        """Checks a rollout.

        Args:
            rollout: A rollout of these spaces.

        Raises:
            InvalidTensorError: The rollout contains a forbidden value: NaN, an infinity, or a value outside a discrete
                space.
        """
        what = f"actor {rollout.actor_id!r}, rollout {rollout.sequence}: column "
        key = rollout.substep_key
        n_agents, columns = self._n_agents[key], rollout.substeps[key]
        for checked in self._columns[key]:
            values = getattr(rollout if checked.column is REWARD else columns, checked.column.name)
            if values is not None:
                values = values[checked.path] if checked.column.is_tree else values
                _check(checked, values, what, rollout.env_seeds, n_agents, rollout.final_index)

    def check_observations(self, observation: Observation, *, key: str, what: str, env_seeds: Sequence[int]) -> None:
        """Checks the observations of an incomplete rollout, because an invalid observation may have caused an error.

        Args:
            observation: `[t, B, ...]` for every leaf.
            key: The substep.
            what: The description of the rollout in messages.
            env_seeds: The seed of each environment.

        Raises:
            InvalidTensorError: See `__call__`.
        """
        for checked in self._columns[key]:
            if checked.column.name == "observation":
                _check(checked, observation[checked.path], f"{what}: column ", env_seeds, self._n_agents[key], None)


def environment_at(
    axes: tuple[str, ...],
    index: tuple[int, ...],
    *,
    env_seeds: Sequence[int],
    n_agents: int,
    final_index: NDArray[Any] | None,
) -> str:
    """Describes the environment of a value, for a message.

    Args:
        axes: The names of the column's leading dimensions.
        index: The value's index in the column.
        env_seeds: The seed of each trajectory's environment, or empty.
        n_agents: The number of trajectories of an environment.
        final_index: The rows of the final observations; None: unknown.

    Returns:
        `", of environment 3 (seed 17)"`, or the part of this text that is known.
    """
    if "b" in axes:
        trajectory = index[axes.index("b")]
    elif final_index is not None and index[0] < len(final_index):
        trajectory = int(final_index[index[0]][1])
    else:
        return ""
    seed = f" (seed {env_seeds[trajectory]})" if 0 <= trajectory < len(env_seeds) else ""
    return f", of environment {trajectory // n_agents}{seed}"


def _check(
    checked: _Column,
    values: NDArray[Any],
    what: str,
    env_seeds: Sequence[int],
    n_agents: int,
    final_index: NDArray[Any] | None,
) -> None:
    axes = checked.column.axes

    def owner(index: tuple[int, ...]) -> str:
        return environment_at(axes, index, env_seeds=env_seeds, n_agents=n_agents, final_index=final_index)

    checked.leaf.check_values(np.ascontiguousarray(values), what=what + checked.name, axes=axes, owner=owner)
