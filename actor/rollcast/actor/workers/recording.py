"""Records a rollout into columns, and tracks episodes across rollouts."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import COLUMNS, STEP_AXES
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.leaf_schema import LeafSchema
from rollcast.services.spaces.spaces import SubstepSpaces, flatten_observation

# Statistics of events, by step and environment in which the episode ended.
EpisodeEventValues: TypeAlias = Mapping[tuple[int, int], tuple[EventValue, ...]]


def step_schemas(spaces: SubstepSpaces) -> dict[str, LeafSchema]:
    """Returns the schema of each column of steps except observations, for one step, by name."""
    columns = (column for column in COLUMNS if column.axes == STEP_AXES and not column.is_tree)
    return {column.name: column.leaves(spaces, RolloutShape({}, 1))[""] for column in columns}


class RolloutColumns:
    """The columns of one rollout. Each rollout has new columns, because the caller keeps the rollout.

    Attributes:
        observation: `[T + 1, B, ...]` for every leaf; the last row is the observation after the last step.
        steps: All columns of steps except observations, `[T, B, ...]` by name. `substep` adds log-probabilities.
        action: `[T, B, ...]`, one of the columns in `steps`.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`.
        truncated: bool `[T, B]`.
        dropped: The rows (t, b) that are not steps, because the environment raised.
        cut: The rows before dropped rows, if an episode was cut there. Cut episodes do not count.
    """

    __slots__ = (
        *("_final", "_final_index", "_leaves"),
        *("action", "cut", "dropped", "observation", "reward", "steps", "terminated", "truncated"),
    )

    def __init__(
        self,
        leaves: Mapping[str, Space[Any]],
        steps: Mapping[str, LeafSchema],
        n_steps: int,
        n_envs: int,
        first_observation: Mapping[str, NDArray[Any]],
    ) -> None:
        """Allocates the columns.

        Args:
            leaves: The leaves of the observation space, by path.
            steps: The result of `step_schemas`.
            n_steps: T.
            n_envs: B.
            first_observation: `[B, ...]` for every leaf, copied into the first row.
        """
        self._leaves = leaves
        self.observation: dict[str, NDArray[Any]] = {}
        for path, leaf in leaves.items():
            self.observation[path] = np.empty((n_steps + 1, n_envs, *(leaf.shape or ())), dtype=leaf.dtype)
            self.observation[path][0] = first_observation[path]
        self.steps: dict[str, NDArray[Any]] = {
            name: np.zeros((n_steps, n_envs, *schema.shape), schema.dtype)
            for name, schema in steps.items()
            if name != "log_prob"
        }
        self.action = self.steps["action"]
        self.reward = np.empty((n_steps, n_envs), dtype=np.float32)
        self.terminated = np.empty((n_steps, n_envs), dtype=np.bool_)
        self.truncated = np.empty((n_steps, n_envs), dtype=np.bool_)
        self.dropped: list[tuple[int, int]] = []
        self.cut: list[tuple[int, int]] = []
        self._final: dict[str, list[NDArray[Any]]] = {path: [] for path in leaves}
        self._final_index: list[tuple[int, int]] = []

    def record_final_observations(self, t: int, final: Any, observation_space: Space[Any]) -> None:  # noqa: ANN401
        """Records the last observations of the episodes that ended in a step.

        Args:
            t: The step, which is already recorded.
            final: The vector environment's `"final_obs"`: an object array with an item for each environment, or a batch
                like that of the step.
            observation_space: The observation space of one environment.
        """
        one_by_one = isinstance(final, np.ndarray) and final.dtype == object
        batched = {} if one_by_one else flatten_observation(observation_space, final)
        for b in np.flatnonzero(self.terminated[t] | self.truncated[t]).tolist():
            leaves = (
                flatten_observation(observation_space, final[b])
                if one_by_one
                else {path: leaf[b] for path, leaf in batched.items()}
            )
            for path, kept in self._final.items():
                # A copy, because environments may reuse their buffer.
                kept.append(np.array(leaves[path], dtype=self._leaves[path].dtype))
            self._final_index.append((t, b))

    def drop(self, t: int, b: int) -> None:
        """Removes a step in which the environment raised, and cuts the episode at the step's observation.

        Args:
            t: The step, which is already recorded, but without its final observations.
            b: The index of the environment.
        """
        self.reward[t, b] = 0.0
        self.terminated[t, b] = self.truncated[t, b] = False
        self.dropped.append((t, b))
        if t and not (self.terminated[t - 1, b] or self.truncated[t - 1, b] or (t - 1, b) in self.dropped):
            self.truncated[t - 1, b] = True
            self.cut.append((t - 1, b))
            for path, kept in self._final.items():
                kept.append(self.observation[path][t, b].copy())
            self._final_index.append((t - 1, b))

    def check_final_observations(self) -> None:
        """Checks that every ended episode has its final observation.

        Raises:
            ConfigurationError: If a final observation is missing.
        """
        n_ended = int(np.count_nonzero(self.terminated | self.truncated))
        if n_ended != len(self._final_index):
            raise ConfigurationError(
                f"{n_ended} episodes ended, but only {len(self._final_index)} have a final observation; expected "
                "infos['final_obs'] in every step that ends an episode, as AutoresetMode.SAME_STEP requires; make the "
                "vector return final observations, or declare another mode in its metadata"
            )

    def substep(self, **computed: Any) -> SubstepColumns:  # noqa: ANN401 - a column
        """Returns the recorded columns, together with columns computed for the whole rollout."""
        steps: dict[str, Any] = self.steps
        return SubstepColumns(
            observation={path: column[:-1] for path, column in self.observation.items()},
            last_observation={path: column[-1] for path, column in self.observation.items()},
            final_observation=self.final_observations(),
            **steps,
            **computed,
        )

    def final_observations(self) -> dict[str, NDArray[Any]]:
        """Returns the final observations, `[N, ...]` for every leaf, in the order of `final_indices`."""
        n = len(self._final_index)
        return {
            path: np.array(kept, dtype=self._leaves[path].dtype).reshape(n, *(self._leaves[path].shape or ()))
            for path, kept in self._final.items()
        }

    def final_indices(self) -> NDArray[np.int32]:
        """Returns the step and the environment of each final observation, int32 `[N, 2]`."""
        return np.array(self._final_index, dtype=np.int32).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class PlayedRows:
    """The columns that an `EpisodeTracker` reads, for recorders without `RolloutColumns`."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    dropped: Sequence[tuple[int, int]] = ()
    cut: Sequence[tuple[int, int]] = ()


class EpisodeTracker:
    """The returns and lengths of unfinished episodes, carried from rollout to rollout.

    The tracker works on whole columns, because an addition in the loop of steps would be too expensive.
    """

    def __init__(self, n_envs: int, *, has_reset_rows: bool) -> None:
        """Starts before the first episode.

        Args:
            n_envs: B.
            has_reset_rows: True: the row after the end of an episode is not a transition.
        """
        self._has_reset_rows = has_reset_rows
        self._return = np.zeros(n_envs, dtype=np.float64)
        self._n_steps = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.zeros(n_envs, dtype=np.bool_)

    def finish(
        self, columns: RolloutColumns | PlayedRows, n_played: int, events: EpisodeEventValues
    ) -> tuple[NDArray[np.bool_] | None, tuple[EpisodeStatistics, ...]]:
        """Finds the transitions of a rollout, and the episodes that ended in the rollout.

        Args:
            columns: The rollout's columns.
            n_played: The number of recorded rows.
            events: The statistics of the ended episodes' events.

        Returns:
            `valid`, bool `[n_played, B]`, or None if every row is a transition, and the ended episodes, in order.
        """
        if n_played == 0:
            return None, ()
        ended = columns.terminated[:n_played] | columns.truncated[:n_played]
        valid: NDArray[np.bool_] | None = None
        for step, env_index in columns.dropped:
            if step == 0:  # drop the episode's part in earlier rollouts, too
                self._return[env_index], self._n_steps[env_index] = 0.0, 0
        reward = columns.reward[:n_played]
        if self._has_reset_rows:
            is_reset_row = np.concatenate([self._ended[None], ended[:-1]])
            if is_reset_row.any():
                valid = ~is_reset_row
                reward = np.where(valid, reward, 0.0)
        # A few numpy calls for all episodes: with a vector entry point, 30,000 episodes end in a second.
        ends = ended.T.ravel()
        starts, stops, firsts, lasts = _segments(ends, n_played)
        returns = np.add.reduceat(reward.T.ravel(), starts, dtype=np.float64)
        n_steps = stops - starts
        if self._has_reset_rows:
            n_steps -= 1  # the reset row at the start of every piece; the first pieces are corrected below
            n_steps[firsts] += ~self._ended
        returns[firsts] += self._return
        n_steps[firsts] += self._n_steps
        if columns.dropped:
            valid = np.ones(ended.shape, np.bool_) if valid is None else valid
            valid[tuple(np.transpose(columns.dropped))] = False
            rows = [env_index * n_played + step for step, env_index in columns.dropped]
            np.subtract.at(n_steps, starts.searchsorted(rows, side="right") - 1, 1)
        self._ended = ended[-1].copy()
        self._return, self._n_steps = returns[lasts], n_steps[lasts]
        self._return[self._ended] = 0.0
        self._n_steps[self._ended] = 0
        stops -= 1
        complete = ends[stops].nonzero()[0]
        if columns.cut:
            rows = [env_index * n_played + step for step, env_index in columns.cut]
            complete = complete[np.isin(stops[complete], rows, invert=True)]
        b, t = np.divmod(stops[complete], n_played)
        in_order = t.argsort(kind="stable")
        complete, b = complete[in_order], b[in_order]
        nothing = itertools.repeat(())
        values = map(events.get, zip(t[in_order].tolist(), b.tolist(), strict=True), nothing) if events else nothing
        columns_of_episodes = (b.tolist(), returns[complete].tolist(), n_steps[complete].tolist(), values)
        return valid, tuple(map(EpisodeStatistics, *columns_of_episodes))


def _segments(ends: NDArray[np.bool_], n_played: int) -> tuple[NDArray[np.int64], ...]:
    """Splits the rows of a rollout into segments of episodes, environment by environment.

    Args:
        ends: bool `[B * n_played]`, True where an episode ended.
        n_played: Rows of each environment.

    Returns:
        Start and stop of each segment, and the indices of the first and last segment of each environment, `[B]`.
    """
    begins = np.empty(ends.shape, dtype=np.bool_)
    begins[1:] = ends[:-1]
    begins[::n_played] = True
    starts = begins.nonzero()[0]
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    stops[-1] = len(ends)
    firsts = starts.searchsorted(np.arange(0, len(ends), n_played))
    lasts = np.empty_like(firsts)
    lasts[:-1] = firsts[1:]
    lasts[-1] = len(starts)
    lasts -= 1
    return starts, stops, firsts, lasts
