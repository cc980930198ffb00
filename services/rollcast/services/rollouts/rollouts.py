"""Rollouts as values: T steps of B environments, columnar and time-major."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.services.rollouts.statistics import EventValue
from rollcast.services.spaces.spaces import Observation


class EpisodeStatistics(NamedTuple):
    """One finished episode, as one agent went through it.

    A tuple, for its speed: some vector environments end 30,000 episodes a second.

    Attributes:
        env_index: Which of the B trajectories.
        episode_return: Sum of its rewards.
        n_steps: Its number of steps.
        events: What its environment fired, reduced.
    """

    env_index: int
    episode_return: float
    n_steps: int
    events: tuple[EventValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFailure:
    """An exception in an actor.

    Attributes:
        exception_type: Its class, for example `"ValueError"`.
        message: Its message.
        traceback: Its traceback, as text.
        env_seed: The seed of the environments at the time.
    """

    exception_type: str
    message: str
    traceback: str
    env_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """How far a rollout stream is.

    Attributes:
        acknowledged_sequence: Every rollout up to this sequence has been accepted, exactly once.
        credit_sequence: The actor may start and send rollouts up to this sequence.
        end_of_training: Training has ended: stop stepping, close the stream and exit.
        min_policy_version: Wait for this version, or a newer one, before the next rollout is started; 0: for none.
    """

    acknowledged_sequence: int
    credit_sequence: int
    end_of_training: bool = False
    min_policy_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstepColumns:
    """What one substep saw and did.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the order of the space.
        action: `[T, B, ...]`.
        log_prob: float32 `[T, B]`, log-probability (density) of the action under the policy that acted.
        last_observation: `[B, ...]` for every leaf, the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the true last observation of the episodes that ended at
            `Rollout.final_index`.
    """

    observation: Observation
    action: NDArray[np.generic]
    log_prob: NDArray[np.float32]
    last_observation: Observation
    final_observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """T steps of B trajectories; it continues where the last one stopped.

    A trajectory is what one agent of one environment goes through, a row for every action of its own; its number is
    `environment * n_agents + agent`. In a flat environment it is the environment's.

    Attributes:
        actor_id: The actor, as it joined.
        incarnation: Which process of that actor, from 1.
        sequence: 1, 2, 3, ... within an incarnation.
        policy_version: The version that acted, from the first step to the last.
        substeps: Columns by substep key; exactly one on the wire, `FLAT_SUBSTEP` for a flat environment.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`, nothing follows from this step.
        truncated: bool `[T, B]`, the episode was cut here; its value goes on from the final observation.
        valid: bool `[T, B]`, or None when every row is a transition. False marks the reset rows of vector environments
            that reset in the step after the last; the observation of such a row is the final one of its episode. It
            also marks the rows before a trajectory whose agent has acted fewer than T times, which hold nothing.
        final_index: int32 `[N, 2]`, rows (t, b) where the final observations belong.
        episodes: Episodes that ended in this rollout.
        env_seeds: The seed the environment of each of the B trajectories was started with.
        env_seeds: The seed each of the B environments was started with.
        events: What the policy fired while it played, reduced.
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

    @property
    def substep_key(self) -> str:
        """The substep that it carries."""
        return next(iter(self.substeps))

    @property
    def n_steps(self) -> int:
        """T, counting the reset rows too."""
        return int(self.reward.shape[0])

    @property
    def n_envs(self) -> int:
        """B, the number of trajectories."""
        return int(self.reward.shape[1])

    @property
    def n_env_steps(self) -> int:
        """The number of transitions, agents' steps: T times B, less the rows that are none."""
        return self.reward.size if self.valid is None else int(np.count_nonzero(self.valid))
