"""Checks the values of a rollout where it is made, with the learner's messages plus environment and seed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.schema import (
    FINAL_AXES,
    LAST_AXES,
    PREVIOUS_AXES,
    STEP_AXES,
    column_name,
)
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.leaf_schema import FLOAT32, LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation, space_leaves

_NUMBER = LeafSchema(FLOAT32)


class _Column(NamedTuple):
    """Values to check, with their name and schema."""

    name: str
    axes: tuple[str, ...]
    leaf: LeafSchema
    values: NDArray[Any]


class ValueCheck:
    """Refuses the rollouts that a learner would refuse, and names the environment and its seed. Any thread may call it.

    Args:
        spaces: The spaces by substep key.
    """

    def __init__(self, spaces: EnvironmentSpaces) -> None:
        self._n_agents = {key: substep.n_agents for key, substep in spaces.items()}
        self._leaves = {
            key: {path: leaf_schema(leaf) for path, leaf in space_leaves(substep.observation).items()}
            for key, substep in spaces.items()
        }
        self._actions = {key: leaf_schema(substep.action) for key, substep in spaces.items()}

    def __call__(self, rollout: Rollout) -> None:
        """Checks a rollout.

        Args:
            rollout: A rollout of these spaces.

        Raises:
            InvalidTensorError: It contains a value that is not allowed: NaN, an infinity, or a value outside a discrete
                space.
        """
        what = f"actor {rollout.actor_id!r}, rollout {rollout.sequence}: column "
        n_agents = self._n_agents[rollout.substep_key]
        for column in self._columns(rollout):
            _check(column, what, rollout.env_seeds, n_agents, rollout.final_index)

    def check_observations(self, observation: Observation, *, key: str, what: str, env_seeds: Sequence[int]) -> None:
        """Checks the observations of an incomplete rollout: a wrong one may be the cause of another error.

        Args:
            observation: `[t, B, ...]` for every leaf.
            key: The substep.
            what: Names the rollout, for messages.
            env_seeds: The seed of each environment.

        Raises:
            InvalidTensorError: As above.
        """
        for column in self._observations(key, "observation", STEP_AXES, observation):
            _check(column, f"{what}: column ", env_seeds, self._n_agents[key], None)

    def _columns(self, rollout: Rollout) -> Iterator[_Column]:
        """Yields every column that may contain wrong values; observations first, since the others derive from them."""
        key, columns = rollout.substep_key, rollout.substeps[rollout.substep_key]
        yield from self._observations(key, "observation", STEP_AXES, columns.observation)
        yield from self._observations(key, "last_observation", LAST_AXES, columns.last_observation)
        yield from self._observations(key, "final_observation", FINAL_AXES, columns.final_observation)
        yield _Column("reward", STEP_AXES, _NUMBER, rollout.reward)
        yield _Column(column_name(key, "action"), STEP_AXES, self._actions[key], columns.action)
        yield _Column(column_name(key, "log_prob"), STEP_AXES, _NUMBER, columns.log_prob)
        if columns.initial_state is not None:
            leaf = LeafSchema(FLOAT32, columns.initial_state.shape[1:])
            yield _Column(column_name(key, "initial_state"), LAST_AXES, leaf, columns.initial_state)
        if columns.previous_observation is not None:
            yield from self._observations(key, "previous_observation", PREVIOUS_AXES, columns.previous_observation)

    def _observations(
        self, key: str, column: str, axes: tuple[str, ...], values: Mapping[str, NDArray[Any]]
    ) -> Iterator[_Column]:
        for path, leaf in self._leaves[key].items():
            yield _Column(column_name(key, column, path), axes, leaf, values[path])


def environment_at(
    axes: tuple[str, ...],
    index: tuple[int, ...],
    *,
    env_seeds: Sequence[int],
    n_agents: int,
    final_index: NDArray[Any] | None,
) -> str:
    """Returns the environment of a value in words, for a message.

    Args:
        axes: Names of the column's leading dimensions.
        index: The value's index in the column.
        env_seeds: The seed of each trajectory's environment, or none.
        n_agents: Trajectories of an environment.
        final_index: The rows of the final observations; None: not known.

    Returns:
        `", of environment 3 (seed 17)"`, or the part of it that is known.
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
    column: _Column, what: str, env_seeds: Sequence[int], n_agents: int, final_index: NDArray[Any] | None
) -> None:
    if not column.leaf.is_checked:
        return

    def whose(index: tuple[int, ...]) -> str:
        return environment_at(column.axes, index, env_seeds=env_seeds, n_agents=n_agents, final_index=final_index)

    values = np.ascontiguousarray(column.values)
    column.leaf.check_values(values, what=what + column.name, axes=column.axes, whose=whose)
