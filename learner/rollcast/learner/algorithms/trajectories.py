"""Prepares the trajectories of a batch: columns, observations to value, next values, advantages.

`transitions.py` does this for single transitions of a replay buffer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.learner.algorithms.frame_stacking import stacked_rows
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.ranks.reduction import ALONE, GradientReduction
from rollcast.services.errors import ConfigurationError


def columns_of(batch: Batch, substep_key: str) -> BatchColumns:
    """Returns the columns of a batch's only substep.

    Args:
        batch: The batch.
        substep_key: The algorithm's substep.

    Raises:
        ConfigurationError: If the batch holds other substeps.
    """
    if batch.substeps.keys() != {substep_key}:
        raise ConfigurationError(
            f"The batch holds the substeps {sorted(batch.substeps)}; expected [{substep_key!r}], for which this "
            "algorithm was made. Use batches of the environment that the algorithm was made for."
        )
    return batch.substeps[substep_key]


def observations_to_value(batch: Batch, columns: BatchColumns) -> dict[str, Tensor]:
    """Concatenates the observations of a batch, so that the critic runs once.

    Args:
        batch: Trajectories `[T, B, ...]`.
        columns: Its observations.

    Returns:
        `[(T + 1) * B + N, ...]` for every leaf: the observations of all T * B rows, then the B last and the N final
        observations. If the policy sees K frames at once, `[(T + 1) * B + N, K, ...]`.
    """
    ends = [columns.last_observation]
    if batch.final_index.shape[0]:
        ends.append(columns.final_observation)
    rows = {
        path: torch.cat([leaf.flatten(0, 1), *(end[path] for end in ends)])
        for path, leaf in columns.observation.items()
    }
    return stacked_rows(batch, columns, rows)


def with_first_transitions_in_front(batch: Batch, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Overwrites the observations before the first transition of each trajectory with its observation.

    The content of these rows is undefined. The batcher overwrites them in fresh rollouts, so only samples of a replay
    buffer need this function.

    Args:
        batch: Trajectories `[T, B, ...]`.
        rows: `[(T + 1) * B + N, ...]` for every leaf, as `observations_to_value` arranges them.

    Returns:
        The changed leaves.
    """
    # On a GPU, a check would wait for the device.
    if batch.valid.device.type == "cpu" and batch.valid[0].all():
        return rows
    n_steps, n = batch.valid.shape
    t = torch.arange(n_steps, device=batch.valid.device)[:, None]
    first = batch.valid.to(torch.uint8).argmax(dim=0)
    index = torch.maximum(t, first) * n + torch.arange(n, device=t.device)
    n_rows = n_steps * n
    return {
        path: torch.cat([leaf[:n_rows].index_select(0, index.flatten()), leaf[n_rows:]]) for path, leaf in rows.items()
    }


def states_before_ends(batch: Batch, states: Tensor) -> Tensor:
    """Returns the recurrent states for the last and the final observations.

    The state for a final observation belongs to its episode, not to the next one.

    Args:
        batch: Trajectories `[T, B, ...]`.
        states: float32 `[T, B, S]`, the states after each row.

    Returns:
        float32 `[B + N, S]`.
    """
    t, b = batch.final_index.unbind(dim=1)
    return torch.cat([states[-1], states[t.clamp(max=len(states) - 1), b]])


def sequence_starts(batch: Batch) -> SequenceStarts:
    """Finds the rows whose recurrent state does not follow from the previous row.

    A row begins an episode if the previous row is not a transition. A transition also begins one if an episode ended in
    the previous row. Some vector environments have a row between two episodes, which continues the state of the first
    episode.

    Args:
        batch: Trajectories `[T, B, ...]`.
    """
    valid, ended = batch.valid, batch.terminated | batch.truncated
    begins = torch.zeros_like(valid)
    begins[1:] = ~valid[:-1] | (ended[:-1] & valid[1:])
    held = torch.ones_like(valid)
    held[1:] = ~valid[:-1].cummax(dim=0).values
    return SequenceStarts(begins & ~held, held)


def values_and_next_values(batch: Batch, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the value of each step's observation, and the value of its true next observation.

    Args:
        batch: Trajectories `[T, B, ...]`.
        values: float32 `[(T + 1) * B + N]`, of `observations_to_value`.

    Returns:
        `v_t` and `v_tp1`, each float32 `[T, B]`.
    """
    n_rows, n_trajectories = batch.reward.numel(), batch.reward.shape[1]
    # Shifted by one row of B, the values are those of the next observations. Where an environment was reset in the same
    # step, the next row belongs to the next episode, and the value of the final observation replaces it.
    v_tp1 = values[n_trajectories : n_rows + n_trajectories].view_as(batch.reward)
    if batch.final_index.shape[0]:
        # One extra row, for unused final observations.
        room = values.new_empty(len(v_tp1) + 1, n_trajectories)
        room[:-1] = v_tp1
        room.index_put_(batch.final_index.unbind(dim=1), values[n_rows + n_trajectories :])
        v_tp1 = room[:-1]
    return values[:n_rows].view_as(batch.reward), v_tp1


def learnt_rows(batch: Batch) -> Tensor:
    """Returns the rows from which an actor-critic learns, bool `[T, B]`: transitions whose action a policy chose.

    An action from another source, `Batch.overridden`, has no information about the policy's actions, for the policy or
    its critic. `vtrace` bootstraps from the value of the observation before that action. Running statistics of
    observations and rewards cover all transitions.
    """
    return batch.valid if batch.overridden is None else batch.valid & ~batch.overridden


def n_learnt_rows(batch: Batch) -> Tensor | float:
    """Returns the number of `learnt_rows`, which is the weight of a rank's means; 0-dim if it is a tensor."""
    return batch.n_env_steps if batch.overridden is None else learnt_rows(batch).sum()


def log_importance(batch: Batch, log_prob: Tensor, acted_log_prob: Tensor) -> Tensor:
    """Returns log pi/mu, float32 `[T, B]`, 0 outside `learnt_rows`.

    Args:
        batch: Trajectories `[T, B, ...]`.
        log_prob: float32 `[T * B]`, of the actions under the policy in training, without graph.
        acted_log_prob: float32 `[T, B]`, under the policy that acted.
    """
    return (log_prob.view_as(batch.reward) - acted_log_prob) * learnt_rows(batch)


def shares_of_steps(batch: Batch, n_env_steps: Tensor | float) -> Tensor:
    """Returns the weights of steps in a mean over `learnt_rows`: float32 `[T, B]`, 0 in all other rows.

    Args:
        batch: Trajectories `[T, B, ...]`.
        n_env_steps: The number of its transitions; a 0-dim tensor must be at least 1.
    """
    if batch.overridden is not None:
        learnt = learnt_rows(batch)
        return learnt / learnt.sum().clamp(min=1)
    return batch.valid / (n_env_steps if isinstance(n_env_steps, Tensor) else max(n_env_steps, 1))


def weighted_variance(quantity: Tensor, weight: Tensor) -> Tensor:
    """Returns the variance of `quantity`, `[N]`, under weights that sum to 1; 0-dim."""
    return torch.dot(weight, (quantity - torch.dot(weight, quantity)).square_())


def normalized(
    advantage: Tensor, weight: Tensor, *, count: Tensor | float = 0.0, reduction: GradientReduction = ALONE
) -> Tensor:
    """Scales advantages, `[N]`, to mean 0 and standard deviation 1 under weights that sum to 1, over all ranks.

    A single advantage is not scaled, as in Stable-Baselines3: its distance from the mean is always 0.

    Args:
        advantage: float32 `[N]`.
        weight: float32 `[N]`.
        count: The number of values with a weight; several ranks need it.
        reduction: The ranks.
    """
    if reduction is ALONE and advantage.shape[0] == 1:
        return advantage
    mean, variance = reduction.mean_and_variance(advantage, weight, count)
    return (advantage - mean).div_(variance.sqrt_().add_(1e-8))


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Returns the share of the targets' variance that the values explain, 0-dim.

    1: the critic predicts the targets exactly; 0: the critic is as good as a constant.

    Args:
        value: float32 `[N]`.
        target: float32 `[N]`.
        weight: float32 `[N]`, with sum 1.
    """
    return 1.0 - weighted_variance(value - target, weight) / (weighted_variance(target, weight) + 1e-8)
