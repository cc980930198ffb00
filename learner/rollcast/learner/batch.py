"""A batch of trajectories as tensors on the learner's device, time first: `[T, B, ...]`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.services.columns.columns import Columns
from rollcast.services.rollouts.rollouts import EpisodeStatistics
from rollcast.services.rollouts.statistics import EventValue


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns(Columns[Tensor]):
    """The observations and actions of one substep: the fields of `rollcast.services.SubstepColumns` as tensors.

    Attributes:
        observation: `[T, B, ...]` for every leaf of the observation space, in the space's dtype.
        action: `[T, B, ...]`, in the space's dtype.
        log_prob: float32 `[T, B]`, of the action under the policy that acted.
        final_observation: `[N, ...]` for every leaf, the true last observations at `Batch.final_index`.
    """

    log_prob: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B trajectories of T steps of one substep. A batch of transitions from a replay buffer has T = 1.

    A transition summarises n steps. `reward` is the discounted sum of their rewards. `last_observation` is the true
    observation after the last step, and `discount` the factor of that observation's value.

    The tensors are views of a slot of the batcher's ring. The tensors stay valid until `Batcher` has returned as many
    further batches as its ring has slots. Clone a batch to keep it longer.

    Attributes:
        substeps: The columns of the batch's substep, by key; `FLAT_SUBSTEP` in a flat environment.
        reward: float32 `[T, B]`.
        terminated: bool `[T, B]`, the episode ended with this step, and no value follows.
        truncated: bool `[T, B]`, the episode was cut after this step; its value continues from the final observation.
        valid: bool `[T, B]`, False in rows that are not transitions. Such a row holds an episode's final observation,
        or precedes all transitions of its trajectory.
        final_index: int64 `[N, 2]`, rows (t, b) of the final observations; t = T marks unused entries, so that N may be
            the same in every batch.
        policy_version: int64 `[B]` on the CPU, the oldest version that acted in each trajectory.
        n_env_steps: The number of transitions.
        episodes: Episodes that ended in these trajectories.
        events: The reduced values of the events in these trajectories.
        keys: int64 `[B]` on the CPU, the entries of the replay buffer; None for fresh rollouts.
        weights: float32 `[B]`, importance weights of prioritised sampling; None: all 1.
        discount: float32 `[B]`, the discount of one step to the power of the number of steps in the transition; None:
            the discount of one step, from the algorithm's settings.
        largest_weight: The largest importance weight, by which the weights were divided; 1 without weights.
        burn_in: The number of first rows that only warm up a recurrent state; the loss ignores them.
        policy_versions: int64 `[T, B]` on the CPU, the version that chose the action of each step, or
            `rollcast.services.rollouts.rollouts.NOT_BY_POLICY`. Rows that are not transitions may hold any number.
            None: `policy_version` chose all actions.
        overridden: bool `[T, B]`, True for transitions whose action no policy chose: their `log_prob` is meaningless.
            None: the policy chose all actions, or the batch comes from a replay buffer.
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
    burn_in: int = 0
    largest_weight: float = 1.0
    policy_versions: NDArray[np.int64] | None = None
    overridden: Tensor | None = None
