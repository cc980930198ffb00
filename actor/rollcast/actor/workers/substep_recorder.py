"""Records one substep of structured environments, trajectory by trajectory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.base import RecurrentState
from rollcast.actor.policies.frame_stacks import FrameStacks
from rollcast.actor.workers.recording import step_schemas
from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.rollouts import NOT_BY_POLICY, EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema
from rollcast.services.spaces.spaces import Observation, SubstepSpaces, space_leaves

# Indices of trajectories, or the row of each trajectory in the same order.
Rows = NDArray[np.int64]


class _Final(NamedTuple):
    """The last observation of an episode, and the row in which it ended."""

    row: int
    trajectory: int
    leaves: dict[str, NDArray[Any]]


class Recorded(NamedTuple):
    """T rows of every trajectory; see `rollcast.services.rollouts.rollouts.Rollout` for the fields."""

    columns: SubstepColumns
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None
    final_index: NDArray[np.int32]
    episodes: tuple[EpisodeStatistics, ...]
    policy_versions: NDArray[np.int64]
    # The oldest policy version that acted in any row; 0 without rows.
    oldest_version: int

    @property
    def is_empty(self) -> bool:
        """True if no agent has acted."""
        return self.valid is not None and not self.valid.any()


class _Before:
    """The states, or the previous frames of a stack, before each row of the trajectories.

    Attributes:
        first: The values before the first row, `[B, ...]`.
    """

    def __init__(self, blank: NDArray[Any]) -> None:
        self.first = blank.copy()
        # Before row T, and before the last row.
        self._beyond = blank.copy()
        self._last = blank.copy()

    def note(self, trajectories: Rows, rows: Rows, n_steps: int, before: NDArray[Any]) -> None:
        """Notes the values before new rows, `[N, ...]`."""
        self._last[trajectories] = before
        for kept, row in ((self.first, 0), (self._beyond, n_steps)):
            kept[trajectories[rows == row]] = before[rows == row]

    def carry_on(self, trajectories: Rows, is_full: NDArray[np.bool_]) -> None:
        """Moves to the first remaining row: row T of a full trajectory, otherwise the open row."""
        full, others = trajectories[is_full], trajectories[~is_full]
        self.first[full] = self._beyond[full]
        self.first[others] = self._last[others]


class SubstepRecorder:
    """A recorder of one substep's agents, with a row for each action of each agent.

    An action begins a row. The row is complete at the agent's next observation, or when the episode ends. The row's
    reward is the sum of the rewards until then. Agents act at different times, so each agent has a separate count of
    rows. An agent may begin a few rows beyond T: the first rows of the next recording. If an agent has
    fewer than T complete rows, these rows are at the end of its trajectory, after rows that are not valid.

    Not thread-safe.

    Args:
        spaces: The spaces of the substep.
        n_steps: T.
        n_trajectories: B.
        n_ahead: The number of rows beyond T that an agent may begin, at least 1.
        initial_state: float32 `[B, S]`, zeros, the states of a recurrent policy at the start of an episode. The
            recorder keeps the array. None: the policy is not recurrent.
        stacks: The stacks of the B trajectories. The recorder keeps them. None: the policy takes single frames.
    """

    def __init__(
        self,
        spaces: SubstepSpaces,
        n_steps: int,
        n_trajectories: int,
        *,
        n_ahead: int = 1,
        initial_state: RecurrentState | None = None,
        stacks: FrameStacks | None = None,
    ) -> None:
        self._leaves = space_leaves(spaces.observation)
        self._schemas = step_schemas(spaces)
        self._n_steps = n_steps
        self._n_rows = n_steps + n_ahead
        self._n = n_trajectories
        self._used: Rows = np.zeros(n_trajectories, np.int64)
        self._is_open = np.zeros(n_trajectories, np.bool_)
        self._earned = np.zeros(n_trajectories, np.float64)
        self._return = np.zeros(n_trajectories, np.float64)
        self._length = np.zeros(n_trajectories, np.int64)
        self._finals: list[_Final] = []
        self._episodes: list[EpisodeStatistics] = []
        # The states for the next observations, and those before rows.
        self._state = initial_state
        self._state_before = None if initial_state is None else _Before(initial_state)
        self._stacks = stacks
        # The frames before rows, [B, K - 1, ...] for every leaf; none before any row.
        self._frames_before: dict[str, _Before] = {}
        self._allocate()

    def _allocate(self) -> None:
        # The next observation of the last row needs one more row.
        n_rows, n = self._n_rows, self._n
        self._observation = {path: _blank((n_rows + 1, n), leaf_schema(leaf)) for path, leaf in self._leaves.items()}
        self._steps = {name: _blank((n_rows, n), leaf) for name, leaf in self._schemas.items()}
        self._reward = np.zeros((n_rows, n), np.float32)
        self._terminated = np.zeros((n_rows, n), np.bool_)
        self._truncated = np.zeros((n_rows, n), np.bool_)
        # The version that acted; if its action was replaced, the version's complement (~version, below 0).
        self._version = np.zeros((n_rows, n), np.int64)

    def has_all_rows(self, first: int, stop: int) -> bool:
        """Returns True if the trajectories `first` to `stop - 1` have T complete rows each."""
        used = self._used
        # One number answers for most steps of a rollout, at a tenth of the cost.
        if used[first] < self._n_steps:
            return False
        return bool((used[first:stop] - self._is_open[first:stop]).min() >= self._n_steps)

    @property
    def has_rows(self) -> bool:
        """True if a row is complete."""
        return bool((self._used > self._is_open).any())

    def has_room(self, trajectory: int) -> bool:
        """Returns True if the trajectory has space for another row."""
        return bool(self._used[trajectory] < self._n_rows)

    def earn(self, trajectory: int, reward: float) -> None:
        """Adds a reward to the episode's return and, if the agent has acted, to the agent's last action."""
        self._return[trajectory] += reward
        if self._is_open[trajectory]:
            self._earned[trajectory] += reward

    def see(self, trajectory: int, leaves: Observation) -> None:
        """Records an agent's observation before its next action, and completes the row of its last action.

        Args:
            trajectory: The agent's trajectory.
            leaves: `[...]` for every leaf; copied.
        """
        self._store(trajectory, leaves)
        self._complete(trajectory)

    def seen(self, trajectories: Rows) -> Observation:
        """Returns copies of agents' current observations, for their actions. Call `act` next.

        Args:
            trajectories: int64 `[N]`, each at most once.

        Returns:
            `[N, ...]` for every leaf; with a frame stack `[N, K, ...]`.
        """
        rows = self._used[trajectories]
        observation = {path: column[rows, trajectories] for path, column in self._observation.items()}
        return observation if self._stacks is None else self._stack(self._stacks, trajectories, observation)

    def state_of(self, trajectories: Rows) -> RecurrentState | None:
        """Returns the states of agents for their current observations, float32 `[N, S]`, as a copy."""
        return None if self._state is None else self._state[trajectories]

    def act(
        self,
        trajectories: Rows,
        action: NDArray[Any],
        log_prob: NDArray[np.float32],
        state: RecurrentState | None = None,
        *,
        policy_version: int = 0,
    ) -> None:
        """Begins a row for each of the trajectories.

        Args:
            trajectories: int64 `[N]`, each at most once.
            action: `[N, ...]`.
            log_prob: float32 `[N]`, the log-probability of each action under the policy that acted.
            state: float32 `[N, S]`, the states of a recurrent policy after these observations.
            policy_version: The version of the policy that acted.
        """
        rows = self._used[trajectories]
        if self._state is not None and self._state_before is not None:
            self._state_before.note(trajectories, rows, self._n_steps, self._state[trajectories])
            self._state[trajectories] = state
        self._steps["action"][rows, trajectories] = action
        self._steps["log_prob"][rows, trajectories] = log_prob
        self._version[rows, trajectories] = policy_version
        self._is_open[trajectories] = True
        self._used[trajectories] += 1
        self._length[trajectories] += 1

    def last_action(self, trajectory: int) -> NDArray[Any] | None:
        """Returns an agent's last action, as a view; None if the action's results are known."""
        row = int(self._used[trajectory]) - 1
        action: NDArray[Any] = self._steps["action"][row, trajectory, ...]
        return action if self._is_open[trajectory] else None

    def override(self, trajectory: int, action: NDArray[Any]) -> None:
        """Replaces an agent's last action with one that no policy chose. Call this before the results are known."""
        row = int(self._used[trajectory]) - 1
        self._steps["action"][row, trajectory] = action
        version = self._version[row, trajectory]
        self._version[row, trajectory] = min(version, ~version)

    def end(
        self, trajectory: int, leaves: Observation, *, truncated: bool, events: tuple[EventValue, ...] = ()
    ) -> bool:
        """Ends an agent's episode.

        Args:
            trajectory: The agent's trajectory.
            leaves: The agent's last observation, `[...]` for every leaf; copied.
            truncated: True: the episode was cut off.
            events: The statistics of the environment's events, for the episode's statistics.

        Returns:
            True: the agent has acted in the episode. False: it has not, so the episode has no statistics.
        """
        if self._is_open[trajectory]:
            row = int(self._used[trajectory]) - 1
            (self._truncated if truncated else self._terminated)[row, trajectory] = True
            self._finals.append(_Final(row, trajectory, {path: np.array(leaf) for path, leaf in leaves.items()}))
            self._store(trajectory, leaves)
            self._complete(trajectory)
        self._forget(trajectory)
        has_acted = bool(self._length[trajectory])
        if has_acted:
            self._episodes.append(
                EpisodeStatistics(
                    env_index=trajectory,
                    episode_return=float(self._return[trajectory]),
                    n_steps=int(self._length[trajectory]),
                    events=events,
                )
            )
        self._return[trajectory] = self._length[trajectory] = 0
        return has_acted

    def drop(self, trajectory: int) -> None:
        """Drops an agent's last action, because its results are unknown. Cuts the episode, without statistics."""
        self._forget(trajectory)
        if self._is_open[trajectory]:
            self._is_open[trajectory] = False
            self._earned[trajectory] = 0.0
            self._used[trajectory] -= 1
        row = int(self._used[trajectory]) - 1
        if row >= 0 and self._length[trajectory] and not self._has_ended(row, trajectory):
            self._truncated[row, trajectory] = True
            seen = {path: column[row + 1, trajectory].copy() for path, column in self._observation.items()}
            self._finals.append(_Final(row, trajectory, seen))
        self._return[trajectory] = self._length[trajectory] = 0

    def begin(self, first: int, stop: int) -> None:
        """Begins an episode for the trajectories `first` to `stop - 1`."""
        self._return[first:stop] = 0.0

    def take(self) -> Recorded:
        """Returns the first T complete rows of every trajectory. The next recording starts with the later rows."""
        n_steps = self._n_steps
        n_taken = np.minimum(self._used - self._is_open, n_steps)
        whole = bool((n_taken == n_steps).all())
        # Row t of the result is recorded row t - padding. The first `padding` rows of the result are no transitions.
        padding = n_steps - n_taken
        source = np.arange(n_steps)[:, None] - padding
        valid = None if whole else source >= 0
        np.maximum(source, 0, out=source)
        everyone = np.arange(self._n)

        def aligned(column: NDArray[Any]) -> NDArray[Any]:
            return column[:n_steps] if whole else column[source, everyone]

        taken = [final for final in self._finals if final.row < n_steps]
        steps: dict[str, Any] = {name: aligned(column) for name, column in self._steps.items()}
        recorded = Recorded(
            columns=SubstepColumns(
                observation={path: aligned(column) for path, column in self._observation.items()},
                **steps,
                last_observation={path: column[n_taken, everyone] for path, column in self._observation.items()},
                final_observation={
                    path: np.array([final.leaves[path] for final in taken], leaf.dtype).reshape(-1, *(leaf.shape or ()))
                    for path, leaf in self._leaves.items()
                },
                initial_state=None if self._state_before is None else self._state_before.first.copy(),
                previous_observation=self._previous_observation(),
            ),
            reward=aligned(self._reward),
            terminated=_only_valid(aligned(self._terminated), valid),
            truncated=_only_valid(aligned(self._truncated), valid),
            valid=valid,
            final_index=np.array(
                [(final.row + padding[final.trajectory], final.trajectory) for final in taken], np.int32
            ).reshape(-1, 2),
            episodes=tuple(self._episodes),
            policy_versions=np.maximum(aligned(self._version), NOT_BY_POLICY),
            oldest_version=self._oldest_version(n_taken),
        )
        self._carry_on(n_taken)
        return recorded

    def _oldest_version(self, n_taken: Rows) -> int:
        # The first row of a trajectory is its oldest.
        first = self._version[0][n_taken > 0]
        return int(np.maximum(first, ~first).min()) if len(first) else 0

    def _carry_on(self, n_taken: Rows) -> None:
        """Starts the next recording with the remaining rows and the current observation of each agent."""
        before = (*self._steps.values(), self._reward, self._terminated, self._truncated, self._version)
        observation = self._observation
        left = self._used - n_taken
        self._allocate()
        now = (*self._steps.values(), self._reward, self._terminated, self._truncated, self._version)
        for row in range(int(left.max()) + 1):
            seen, has_row = np.flatnonzero(left >= row), np.flatnonzero(left > row)
            for path, column in observation.items():
                self._observation[path][row, seen] = column[n_taken[seen] + row, seen]
            for old, new in zip(before, now, strict=True):
                new[row, has_row] = old[n_taken[has_row] + row, has_row]
        n_steps, has_row = self._n_steps, np.flatnonzero(left)
        is_full = n_taken[has_row] == n_steps
        for kept in (self._state_before, *self._frames_before.values()):
            if kept is not None:
                kept.carry_on(has_row, is_full)
        # From a trajectory with an ended row beyond T, T rows were taken.
        self._finals = [final._replace(row=final.row - n_steps) for final in self._finals if final.row >= n_steps]
        self._episodes = []
        self._used = left

    def _forget(self, trajectory: int) -> None:
        if self._state is not None:
            self._state[trajectory] = 0.0
        if self._stacks is not None:
            self._stacks.begin(trajectory)

    def _stack(self, stacks: FrameStacks, trajectories: Rows, observation: Observation) -> Observation:
        """Returns the stacks that end with these frames; notes the previous frames, for the rows that `act` begins."""
        stacked = stacks.push_some(trajectories, observation)
        rows = self._used[trajectories]
        for path, previous in stacks.previous_of(trajectories).items():
            if path not in self._frames_before:
                self._frames_before[path] = _Before(np.zeros((self._n, *previous.shape[1:]), previous.dtype))
            self._frames_before[path].note(trajectories, rows, self._n_steps, previous)
        return stacked

    def _previous_observation(self) -> Observation | None:
        if self._stacks is None:
            return None
        return {path: before.first.copy() for path, before in self._frames_before.items()}

    def _has_ended(self, row: int, trajectory: int) -> bool:
        return bool(self._terminated[row, trajectory] or self._truncated[row, trajectory])

    def _store(self, trajectory: int, leaves: Observation) -> None:
        row = self._used[trajectory]
        for path, leaf in leaves.items():
            self._observation[path][row, trajectory] = leaf

    def _complete(self, trajectory: int) -> None:
        if self._is_open[trajectory]:
            self._reward[self._used[trajectory] - 1, trajectory] = self._earned[trajectory]
            self._earned[trajectory] = 0.0
            self._is_open[trajectory] = False


def _blank(shape: tuple[int, int], leaf: LeafSchema) -> NDArray[Any]:
    """Returns a column filled with the lowest values of its space, because empty rows are checked, too."""
    column: NDArray[Any] = np.zeros((*shape, *leaf.shape), leaf.dtype)
    if leaf.low is not None and np.any(leaf.low):
        column += np.asarray(leaf.low, leaf.dtype)
    return column


def _only_valid(flags: NDArray[np.bool_], valid: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return flags if valid is None else flags & valid


def index_array(indices: Sequence[int]) -> Rows:
    """Returns indices as an array."""
    return np.array(indices, np.int64)
