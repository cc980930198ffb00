"""Defines rollouts as values: T steps of B environments, columnar and time-major."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.wire.same_fields import same_fields

# The version of a step whose action no policy chose, but a human, a planner or a safety filter.
NOT_BY_POLICY: Final = -1


class EpisodeStatistics(NamedTuple):
    """One finished episode of one agent.

    A tuple, for its speed: some vector environments end 30,000 episodes a second.

    Attributes:
        env_index: The trajectory, of B.
        episode_return: Sum of its rewards.
        n_steps: Its number of steps.
        events: The events that its environment fired, reduced.
    """

    env_index: int
    episode_return: float
    n_steps: int
    events: tuple[EventValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """The progress of a rollout stream.

    Attributes:
        acknowledged_sequence: Every rollout up to this sequence has been accepted, exactly once.
        credit_sequence: The actor may start and send rollouts up to this sequence. If it is not above the acknowledged
            one, the actor waits for a later answer; see `RolloutStream.await_credit`.
        end_of_training: Training has ended: stop stepping, close the stream and exit.
        min_policy_version: Wait for this version or a newer one before starting the next rollout; 0: do not wait.
    """

    acknowledged_sequence: int
    credit_sequence: int
    end_of_training: bool = False
    min_policy_version: int = 0


# The names are the contract's; both ends of a stream copy them.
progress_fields: Final = same_fields(StreamProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """T steps of B trajectories, which continue the actor's previous rollout.

    A trajectory is the experience of one agent of one environment, with a row for each of its actions; its number is
    `environment * n_agents + agent`. In a flat environment it is the environment's number.

    Attributes:
        actor_id: The actor's name from Join.
        incarnation: The process of that actor, from 1.
        sequence: 1, 2, 3, ... within an incarnation.
        policy_version: The version that acted. If several did, the one from which the age of the rollout counts.
        substeps: Columns by substep key; exactly one on the wire, `FLAT_SUBSTEP` for a flat environment.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`, the episode ended in this step and nothing follows from it.
        truncated: bool `[T, B]`, the episode was cut in this step; its value continues from the final observation.
        valid: bool `[T, B]`, or None if every row is a transition. False marks the reset rows of vector environments
            that reset in the step after the last; the observation of such a row is the final one of its episode. False
            also marks the empty rows before a trajectory whose agent has acted fewer than T times.
        final_index: int32 `[N, 2]`, the rows (t, b) of the final observations.
        episodes: Episodes that ended in this rollout.
        env_seeds: The seed with which the environment of each of the B trajectories was started.
        events: The events that the policy fired while it played, reduced.
        policy_versions: int64 `[T, B]`, the version that chose the action of each step, or `NOT_BY_POLICY`. Rows that
            are not valid may hold any version. None: `policy_version` chose all.
    """

    actor_id: str
    incarnation: int
    sequence: int
    policy_version: int
    substeps: Mapping[str, SubstepColumns]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_] | None
    final_index: NDArray[np.int32]
    episodes: tuple[EpisodeStatistics, ...]
    env_seeds: tuple[int, ...]
    events: tuple[EventValue, ...] = ()
    policy_versions: NDArray[np.int64] | None = None

    @property
    def substep_key(self) -> str:
        """The key of its substep."""
        return next(iter(self.substeps))

    @property
    def n_steps(self) -> int:
        """T, including reset rows."""
        return int(self.reward.shape[0])

    @property
    def n_envs(self) -> int:
        """B, the number of trajectories."""
        return int(self.reward.shape[1])

    @property
    def n_env_steps(self) -> int:
        """The number of transitions, which are agents' steps: T times B, without invalid rows."""
        return self.reward.size if self.valid is None else int(np.count_nonzero(self.valid))
