"""Defines batches and the status of a replay buffer as values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWaiting:
    """A reader or writer that waits for the limiter.

    Attributes:
        reason: The reason, with the numbers.
        seconds: The time that it has waited.
        who: "the trainer", "the actors"; empty: a reader of `ReplayService.Sample`.
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
class ReplayColumns:
    """The observations and actions of one substep in a batch.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space.
        action: `[T, B, ...]`.
        log_prob: float32 `[T, B]`; None if the buffer does not keep it.
        next_observation: `[B, ...]` for every leaf: m steps later, or after the last step of a rollout.
        final_observation: `[N, ...]` for every leaf, at `ReplayBatch.final_index`.
    """

    observation: Observation
    action: NDArray[Any]
    log_prob: NDArray[np.float32] | None
    next_observation: Observation
    final_observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBatch:
    """B entries side by side. T is 1 for transitions, else the steps of a rollout or sequence.

    Attributes:
        keys: int64 `[B]`, identify the entries when priorities are updated.
        weights: float32 `[B]`, importance weights in (0, 1].
        n_steps: int64 `[B]`, m, the number of steps folded into an entry.
        discount: float32 `[B]`, gamma^m; nothing follows a `terminated` entry.
        substeps: Columns by substep key; a flat environment has one, `FLAT_SUBSTEP`.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`.
        truncated: bool `[T, B]`.
        valid: bool `[T, B]`, false on rows that are not transitions.
        final_index: int64 `[N, 2]`, the rows (t, b) of the final observations.
        policy_version: int64 `[B]`, the version that acted; -1 if the buffer does not keep it.
        burn_in: The number of first rows that only warm a recurrent state up.
    """

    keys: NDArray[np.int64]
    weights: NDArray[np.float32]
    n_steps: NDArray[np.int64]
    discount: NDArray[np.float32]
    substeps: Mapping[str, ReplayColumns]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_index: NDArray[np.int64]
    policy_version: NDArray[np.int64]
    burn_in: int

    @property
    def batch_size(self) -> int:
        """B, the number of entries."""
        return len(self.keys)

    @property
    def n_bytes(self) -> int:
        """The size of all arrays."""
        n_bytes = sum(
            array.nbytes
            for array in (
                *(self.keys, self.weights, self.n_steps, self.discount, self.reward),
                *(self.terminated, self.truncated, self.valid, self.final_index, self.policy_version),
            )
        )
        for columns in self.substeps.values():
            n_bytes += columns.action.nbytes + (0 if columns.log_prob is None else columns.log_prob.nbytes)
            for leaves in (columns.observation, columns.next_observation, columns.final_observation):
                n_bytes += sum(array.nbytes for array in leaves.values())
        return n_bytes

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
        return ReplayBatch(
            keys=self.keys[cut],
            weights=self.weights[cut],
            n_steps=self.n_steps[cut],
            discount=self.discount[cut],
            substeps={
                key: ReplayColumns(
                    observation={path: array[:, cut] for path, array in columns.observation.items()},
                    action=columns.action[:, cut],
                    log_prob=None if columns.log_prob is None else columns.log_prob[:, cut],
                    next_observation={path: array[cut] for path, array in columns.next_observation.items()},
                    final_observation={path: array[wanted] for path, array in columns.final_observation.items()},
                )
                for key, columns in self.substeps.items()
            },
            reward=self.reward[:, cut],
            terminated=self.terminated[:, cut],
            truncated=self.truncated[:, cut],
            valid=self.valid[:, cut],
            final_index=self.final_index[wanted] - np.array([0, start]),
            policy_version=self.policy_version[cut],
            burn_in=self.burn_in,
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

    def total(name: str) -> Any:  # noqa: ANN401  # an int or a float
        return sum(getattr(status, name) for status in statuses.values())

    return ReplayStatus(
        size=total("size"),
        capacity=total("capacity"),
        n_bytes=total("n_bytes"),
        inserted=total("inserted"),
        sampled=total("sampled"),
        min_size=total("min_size"),
        difference=total("difference"),
        min_diff=total("min_diff"),
        max_diff=total("max_diff"),
        waiting=tuple(
            replace(wait, reason=f"{key}: {wait.reason}") for key, status in statuses.items() for wait in status.waiting
        ),
    )
