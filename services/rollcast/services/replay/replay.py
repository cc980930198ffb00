"""Defines batches and the status of a replay buffer as values."""

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

# The names of those that wait for a rate limiter; a reader of `ReplayService.Sample` has none.
ACTORS: Final = "the actors"
TRAINER: Final = "the trainer"

# The arrays `[B]` of a sample beside its columns.
_BY_ENTRY: Final = ("keys", "weights", "n_steps", "discount", "policy_version")
_COMMON: Final = tuple(column.name for column in COMMON_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWaiting:
    """A reader or writer that waits for the limiter.

    Attributes:
        reason: The reason, with the numbers.
        seconds: The time that it has waited.
        who: `TRAINER`, `ACTORS`; empty: a reader of `ReplayService.Sample`.
    """

    reason: str
    seconds: float
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStatus:
    """The changing part of a buffer's state; field by field as `rollcast.v1.ReplayStatus` documents it."""

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
    """The state of a buffer; field by field as `rollcast.v1.ReplayInfo` documents it."""

    ignored_updates: int
    spaces: EnvironmentSpaces
    n_rollout_steps: int
    n_sample_steps: int
    entry_bytes: int

    def status(self) -> ReplayStatus:
        """Returns the part of the state that changes."""
        return ReplayStatus(**{field.name: getattr(self, field.name) for field in fields(ReplayStatus)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledColumns(Columns[_Array]):
    """The fields of `ReplayColumns`, which documents them, in arrays of any kind."""

    @property
    def next_observation(self) -> Mapping[str, _Array]:
        """The observation after the last step, by the name that it has in `ReplayService`."""
        return self.last_observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Generic[_Array]):
    """The fields of `ReplayBatch`, which documents them, with columns in arrays of any kind."""

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
        log_prob: float32 `[T, B]`, of the action under the policy that acted; None if the buffer does not keep it.
        last_observation: `[B, ...]` for every leaf, `next_observation` by another name. Transitions: the observation m
            steps later, the true final one if the episode ended. Rollouts: the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the true last observations at `ReplayBatch.final_index`.
        initial_state: float32 `[B, S]`, the states with which a recurrent policy acted in the first valid rows; None if
            the buffer keeps none.
        previous_observation: `[B, K - 1, ...]` for every leaf, the frames before the first valid rows of a policy that
            stacks frames, the oldest first. None if it does not, and for transitions, whose observations are stacks.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch(Sample[NDArray[Any]]):
    """B entries of a replay buffer side by side. T is 1 for transitions, else the steps of a rollout or sequence.

    Attributes:
        keys: int64 `[B]`, identify the entries when priorities are updated; a key is never used again.
        weights: float32 `[B]`, importance weights in (0, 1]; 1 unless sampling is prioritised.
        n_steps: int64 `[B]`, m, the steps folded into the entry: `n_step`, or fewer if the episode or trajectory ended.
        discount: float32 `[B]`, gamma^m, the factor of the next observation's value; nothing follows a `terminated`
            entry.
        substeps: Columns by substep key; a flat environment has one, `FLAT_SUBSTEP`.
        reward: float32 `[T, B]`; transitions: the sum of gamma^k r_k over the m steps.
        terminated: bool `[T, B]`, the episode ended with this step (the last of the m).
        truncated: bool `[T, B]`, the episode was cut off here; its value continues from the final observation.
        valid: bool `[T, B]`, False on rows that are no transition. Rows before all transitions of their trajectory hold
            arbitrary values.
        final_index: int64 `[N, 2]`, the rows (t, b) of the final observations; empty for transitions.
        policy_version: int64 `[B]`, the version that acted; -1 for transitions, which do not keep it.
        burn_in: The number of first rows that only warm up a recurrent state.
    """

    substeps: Mapping[str, ReplayColumns]

    @property
    def batch_size(self) -> int:
        """B, the number of entries."""
        return len(self.keys)

    @property
    def n_bytes(self) -> int:
        """The size of all arrays."""
        columns = (array for columns in self.substeps.values() for array in columns.flat())
        common = (getattr(self, name) for name in (*_BY_ENTRY, *_COMMON))
        return sum(array.nbytes for array in (*columns, *common))

    def entries(self, start: int, stop: int) -> "ReplayBatch":
        """Returns some of its entries as a batch of their own, with views where possible.

        Args:
            start: The first entry.
            stop: The end, exclusive.

        Returns:
            The batch; its `final_index` counts from `start`.
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
    """Adds up the status of the buffers of several substeps.

    Args:
        statuses: The status of each, by substep key.

    Returns:
        The sums, and everything that waits, with its substep; the status itself if there is only one.
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
