"""Defines the batches and the status of a replay buffer as values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.columns import Columns, of_trajectories, take_common
from rollcast.services.columns.table import COMMON_COLUMNS
from rollcast.services.spaces.spaces import EnvironmentSpaces

# The type of a sample's columns: numpy arrays, or tensors on a learner's device.
_Array = TypeVar("_Array")

# The names of the clients that wait for a rate limiter. A reader of `ReplayService.Sample` has no name.
ACTORS: Final = "the actors"
TRAINER: Final = "the trainer"

# The arrays `[B]` of a sample beside its columns.
_BY_ENTRY: Final = ("keys", "weights", "n_steps", "discount", "policy_version")
_COMMON: Final = tuple(column.name for column in COMMON_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWaiting:
    """A reader or writer that waits for the limiter.

    Attributes:
        reason: The reason, with numbers.
        seconds: The seconds for which the client has waited.
        who: The client: `TRAINER` or `ACTORS`; empty: a reader of `ReplayService.Sample`.
    """

    reason: str
    seconds: float
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStatus:
    """The changing part of a buffer's state. `rollcast.v1.ReplayStatus` documents the fields."""

    size: int
    capacity: int
    n_bytes: int
    inserted: int
    sampled: int
    min_size: int
    difference: float
    min_diff: float
    max_diff: float
    waiting: tuple[ReplayWaiting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInfo(ReplayStatus):
    """The state of a buffer. `rollcast.v1.ReplayInfo` documents the fields."""

    ignored_updates: int
    spaces: EnvironmentSpaces
    n_rollout_steps: int
    n_sample_steps: int
    entry_bytes: int

    def status(self) -> ReplayStatus:
        """Returns the changing part of the state."""
        return ReplayStatus(**{field.name: getattr(self, field.name) for field in fields(ReplayStatus)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledColumns(Columns[_Array]):
    """The columns of one substep in arrays of any kind. `ReplayColumns` documents the fields."""

    @property
    def next_observation(self) -> Mapping[str, _Array]:
        """The observation after the last step, under its name in `ReplayService`."""
        return self.last_observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Generic[_Array]):
    """A batch with arrays of any kind. `ReplayBatch` documents the fields."""

    keys: NDArray[np.int64]
    weights: NDArray[np.float32]
    n_steps: NDArray[np.int64]
    discount: NDArray[np.float32]
    substeps: Mapping[str, SampledColumns[_Array]]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_index: NDArray[np.int64]
    policy_version: NDArray[np.int64]
    burn_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayColumns(SampledColumns[NDArray[Any]]):
    """The columns of one substep in a `ReplayBatch`.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the space's own dtype.
        action: `[T, B, ...]`.
        log_prob: float32 `[T, B]`, the log-probability (density) of the action under the policy that acted; None if the
            buffer does not store it.
        last_observation: `[B, ...]` for every leaf, also called `next_observation`. Transitions: the observation m
            steps later, or the final one if the episode ended. Rollouts: the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the last observations of episodes at `ReplayBatch.final_index`.
        initial_state: float32 `[B, S]`, the states of a recurrent policy at the first valid rows; None if the buffer
            stores no states.
        previous_observation: `[B, K - 1, ...]` for every leaf, the frames before the first valid rows, the oldest
            first. None without frame stacks, and for transitions, whose observations already are stacks.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch(Sample[NDArray[Any]]):
    """B entries of a replay buffer. T is 1 for transitions, otherwise the number of steps of a rollout or sequence.

    Attributes:
        keys: int64 `[B]`, the keys of the entries for updates of priorities. A key is never reused.
        weights: float32 `[B]`, importance weights in (0, 1]; 1 unless sampling is prioritised.
        n_steps: int64 `[B]`, m, the number of steps in the entry: `n_step`, or fewer if the episode or trajectory
            ended.
        discount: float32 `[B]`, gamma^m, the factor of the next observation's value. Ignore that value in a
            `terminated` entry.
        substeps: The columns by substep key. A flat environment has only the key `FLAT_SUBSTEP`.
        reward: float32 `[T, B]`; transitions: the sum of gamma^k r_k over the m steps.
        terminated: bool `[T, B]`, the episode ended with this step (of a transition: with the last of its m steps).
        truncated: bool `[T, B]`, the episode was cut in this step; the value of the final observation is the bootstrap.
        valid: bool `[T, B]`, False on rows that are not transitions. Rows before the first transition of their
            trajectory hold arbitrary values.
        final_index: int64 `[N, 2]`, the rows (t, b) of the final observations; empty for transitions.
        policy_version: int64 `[B]`, the version of the policy that acted; -1 for transitions, which do not store it.
        burn_in: The number of rows at the beginning that only warm up a recurrent state.
    """

    substeps: Mapping[str, ReplayColumns]

    @property
    def batch_size(self) -> int:
        """B, the number of entries."""
        return len(self.keys)

    @property
    def n_bytes(self) -> int:
        """The size of all arrays in bytes."""
        columns = (array for columns in self.substeps.values() for array in columns.flat())
        common = (getattr(self, name) for name in (*_BY_ENTRY, *_COMMON))
        return sum(array.nbytes for array in (*columns, *common))

    def entries(self, start: int, stop: int) -> "ReplayBatch":
        """Returns some entries as a separate batch, with views where possible.

        Args:
            start: The first entry.
            stop: The end, exclusive.

        Returns:
            The batch. Its `final_index` counts entries from `start`.
        """
        if start == 0 and stop >= self.batch_size:
            return self
        cut = slice(start, stop)
        wanted = (self.final_index[:, 1] >= start) & (self.final_index[:, 1] < stop)
        index = of_trajectories(cut, wanted)
        common = take_common(self, index) | {name: getattr(self, name)[cut] for name in _BY_ENTRY}
        return replace(
            self,
            substeps={key: columns.take(index) for key, columns in self.substeps.items()},
            **common | {"final_index": self.final_index[wanted] - np.array([0, start])},
        )


def joint_replay_status(statuses: Mapping[str, ReplayStatus]) -> ReplayStatus:
    """Combines the status of the buffers of several substeps.

    Args:
        statuses: The status of each buffer, by substep key.

    Returns:
        The sums, and all waiting readers and writers with their substeps. For a single buffer, its own status.
    """
    if len(statuses) == 1:
        return next(iter(statuses.values()))

    numbers = [field.name for field in fields(ReplayStatus) if field.name != "waiting"]
    totals: dict[str, Any] = {name: sum(getattr(one, name) for one in statuses.values()) for name in numbers}
    return ReplayStatus(
        **totals,
        waiting=tuple(
            replace(wait, reason=f"{key}: {wait.reason}") for key, status in statuses.items() for wait in status.waiting
        ),
    )
