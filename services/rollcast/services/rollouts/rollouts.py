"""Defines rollouts as values: T steps of B environments, columnar and time-major."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.columns.columns import SubstepColumns
from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.wire.same_fields import same_fields

# The policy version of a step whose action a human, a planner or a safety filter chose.
NOT_BY_POLICY: Final = -1


class EpisodeStatistics(NamedTuple):
    """One finished episode of one agent.

    It is a tuple for speed, because some vector environments end 30,000 episodes per second.

    Attributes:
        env_index: The trajectory's number, below B.
        episode_return: The sum of the episode's rewards.
        n_steps: The episode's number of steps.
        events: The reduced events that the environment fired.
    """

    env_index: int
    episode_return: float
    n_steps: int
    events: tuple[EventValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """The progress of a rollout stream.

    Attributes:
        acknowledged_sequence: The learner has accepted every rollout up to this sequence exactly once.
        credit_sequence: The actor may start and send rollouts up to this sequence. If it does not exceed
            `acknowledged_sequence`, the actor waits for a later answer; see `RolloutStream.await_credit`.
        end_of_training: Training has ended: stop stepping, close the stream and exit.
        min_policy_version: Before the next rollout, wait for this version or a newer version; 0: do not wait.
    """

    acknowledged_sequence: int
    credit_sequence: int
    end_of_training: bool = False
    min_policy_version: int = 0


# The fields with the contract's names. Both sides of a stream copy them.
progress_fields: Final = same_fields(StreamProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """T steps of B trajectories, which continue the actor's previous rollout.

    A trajectory is the experience of one agent of one environment, with a row for each of its actions. Its number is
    `environment * n_agents + agent`. In a flat environment, this is the environment's number.

    Attributes:
        actor_id: The actor's name from Join.
        incarnation: The actor's incarnation, from 1.
        sequence: The rollout's number within the incarnation: 1, 2, 3, ...
        policy_version: The version of the policy that acted. If several versions acted, the one that determines the
            rollout's policy lag.
        substeps: The columns by substep key; exactly one substep on the wire, `FLAT_SUBSTEP` for a flat environment.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`, the episode ended by itself in this step, so the bootstrap is 0.
        truncated: bool `[T, B]`, the episode was cut in this step; the value of the final observation is the bootstrap.
        valid: bool `[T, B]`, or None if every row is a transition. False marks the reset rows of vector environments
            with NEXT_STEP, which have the final observation of the episode. False also marks the empty rows before a
            trajectory whose agent has acted fewer than T times.
        final_index: int32 `[N, 2]`, the rows (t, b) of the final observations.
        episodes: The episodes that ended in this rollout.
        env_seeds: The initial seed of the environment of each of the B trajectories.
        events: The reduced events of the policy.
        policy_versions: int64 `[T, B]`, the version of the policy that chose the action of each step, or
            `NOT_BY_POLICY`. Rows that are not valid may have any version. None: `policy_version` chose all actions.
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
        """The key of the rollout's substep."""
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
        """The number of transitions (agents' steps): T times B, without invalid rows."""
        return self.reward.size if self.valid is None else int(np.count_nonzero(self.valid))
