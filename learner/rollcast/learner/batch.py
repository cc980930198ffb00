"""A batch of trajectories as tensors on the learner's device, time first: `[T, B, ...]`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """What one substep saw and did.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the space's own dtype.
        action: `[T, B, ...]`, in the space's own dtype.
        log_prob: float32 `[T, B]`, of the action under the policy that acted.
        last_observation: `[B, ...]` for every leaf, the observation after the last step.
        final_observation: `[N, ...]` for every leaf, the true last observations at `Batch.final_index`.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    log_prob: Tensor
    last_observation: Mapping[str, Tensor]
    final_observation: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B trajectories of T steps, or B transitions, T = 1, from a replay buffer; of one substep.

    A transition is what n steps came to: `reward` is their discounted sum, `last_observation` the true observation
    after the last of them, and `discount` what its value is multiplied by.

    The tensors are views of a slot of the batcher's ring: they stay valid until `Batcher` has handed out as many
    batches as its ring has slots. Whoever keeps one longer clones it.

    Attributes:
        substeps: Columns by substep key, one; `FLAT_SUBSTEP` in a flat environment.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`, nothing follows from this step.
        truncated: bool `[T, B]`, cut here; the value goes on from the final observation.
        valid: bool `[T, B]`, false on rows that are no transition. Such a row follows the end of an episode, and its
            observation is that episode's final one; or it comes before all transitions of its trajectory.
        final_index: int64 `[N, 2]`, rows (t, b) where the final observations belong.
        policy_version: int64 `[B]` on the CPU, the version that acted in each trajectory.
        n_env_steps: The number of transitions.
        episodes: Episodes that ended in these trajectories.
        events: What the policy fired while it played them, reduced.
        keys: int64 `[B]` on the CPU, the entries of the replay buffer; None for fresh rollouts.
        weights: float32 `[B]`, importance weights of prioritised sampling; None: all 1.
        discount: float32 `[B]`, the discount of a step to the power of the number of steps that are folded into the
            transition; None: that of one step, from the algorithm's settings.
    """

    substeps: Mapping[str, BatchColumns]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_index: Tensor
    policy_version: NDArray[np.int64]
    n_env_steps: int
    episodes: tuple[EpisodeStatistics, ...]
    events: tuple[EventValue, ...] = ()
    keys: NDArray[np.int64] | None = None
    weights: Tensor | None = None
    discount: Tensor | None = None
