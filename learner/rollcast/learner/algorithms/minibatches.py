"""The steps of a batch, and its minibatches of single steps or whole trajectories."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.learner.algorithms.trajectories import learnt_rows, sequence_starts
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.errors import ConfigurationError


class Sequences(NamedTuple):
    """B whole trajectories, with the states of a recurrent policy.

    Attributes:
        initial_state: float32 `[B, S]`.
        starts: The rows `[T, B]` whose state does not follow from the previous row.
    """

    initial_state: Tensor
    starts: SequenceStarts

    def at(self, index: Tensor) -> "Sequences":
        """Returns the trajectories at an int64 index `[M]`."""
        return Sequences(self.initial_state[index], SequenceStarts(*(rows[:, index] for rows in self.starts)))


class Steps(NamedTuple):
    """The N = T * B steps of a batch, or the steps of a minibatch: in any order, or as whole trajectories by rows.

    Attributes:
        observation: `[N, ...]` for every leaf, in the form that networks see.
        action: `[N, ...]`.
        log_prob: float32 `[N]`, of the actions under the policy that acted.
        value: float32 `[N]`, the critic's values before the first pass.
        advantage: float32 `[N]`.
        target: float32 `[N]`, the critic's targets.
        valid: float32 `[N]`, 1 in the rows of `learnt_rows`, else 0.
        sequences: The trajectories if the policy is recurrent, whose minibatches are whole trajectories; else None.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    valid: Tensor
    sequences: Sequences | None

    @property
    def n_items(self) -> int:
        """The number of steps or sequences from which minibatches are drawn."""
        return len(self.valid) if self.sequences is None else len(self.sequences.initial_state)

    def at(self, index: Tensor) -> "Steps":
        """Returns the steps, or the sequences, at an int64 index `[M]`."""
        n, sequences = self.n_items, self.sequences

        def taken(column: Tensor) -> Tensor:
            if sequences is None:
                return column[index]
            return column.view(-1, n, *column.shape[1:])[:, index].flatten(0, 1)

        return Steps(
            observation={path: taken(leaf) for path, leaf in self.observation.items()},
            action=taken(self.action),
            log_prob=taken(self.log_prob),
            value=taken(self.value),
            advantage=taken(self.advantage),
            target=taken(self.target),
            valid=taken(self.valid),
            sequences=None if sequences is None else sequences.at(index),
        )


def steps_of(
    batch: Batch,
    columns: BatchColumns,
    rows: Mapping[str, Tensor],
    *,
    value: Tensor,
    advantage: Tensor,
    target: Tensor,
) -> Steps:
    """Returns the steps of a batch.

    Args:
        batch: Trajectories `[T, B, ...]`.
        columns: Its columns.
        rows: Its observations in the form that networks see, in the order of `observations_to_value`.
        value: float32 `[T, B]`, by the critic before the first pass.
        advantage: float32 `[T, B]`.
        target: float32 `[T, B]`, of the critic.
    """
    n_steps, state = batch.reward.numel(), columns.initial_state
    return Steps(
        observation={path: leaf[:n_steps] for path, leaf in rows.items()},
        action=columns.action.flatten(0, 1),
        log_prob=columns.log_prob.flatten(),
        value=value.flatten(),
        advantage=advantage.flatten(),
        target=target.flatten(),
        valid=learnt_rows(batch).flatten().to(torch.float32),
        sequences=None if state is None else Sequences(state, sequence_starts(batch)),
    )


def default_minibatch_steps(n_steps: int, *, recurrent: bool) -> int:
    """Returns the default number of steps in a minibatch.

    More minibatches learn more from a batch, but small minibatches leave most of a processor idle. Each optimiser step
    costs as much as hundreds of samples.

    Args:
        n_steps: The steps of a batch.
        recurrent: True if minibatches consist of whole trajectories.
    """
    return max(256 if recurrent else 64, n_steps // 32)


def default_items_in_minibatch(n_items: int, steps_of_item: int) -> int:
    """Returns the default number of items in a minibatch: steps, or whole trajectories if the policy is recurrent.

    Args:
        n_items: The items of a batch.
        steps_of_item: The steps of an item: 1, or T.
    """
    return max(1, default_minibatch_steps(n_items * steps_of_item, recurrent=steps_of_item > 1) // steps_of_item)


def check_minibatch_steps(minibatch_steps: int | None, n_steps: int, *, algorithm: str) -> None:
    """Checks that a batch is large enough for a minibatch.

    Args:
        minibatch_steps: The steps of the minibatch; None: the default.
        n_steps: The steps of the batch, B times T.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: The batch has fewer steps.
    """
    if minibatch_steps is not None and n_steps < minibatch_steps:
        raise ConfigurationError(
            f"--{algorithm}.minibatch-steps: {minibatch_steps}, and a batch has {n_steps} steps "
            "(batch_size * n_rollout_steps); expected no more than that; lower it, or raise --batch-size or "
            "--n-rollout-steps"
        )


def items_in_minibatch(minibatch_steps: int, steps_of_item: int, *, algorithm: str) -> int:
    """Returns the number of items in a minibatch: steps, or whole trajectories if the policy is recurrent.

    Args:
        minibatch_steps: The steps of the minibatch.
        steps_of_item: The steps of an item: 1, or T.
        algorithm: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If the steps are not a multiple of an item's.
    """
    if minibatch_steps % steps_of_item:
        raise ConfigurationError(
            f"--{algorithm}.minibatch-steps: {minibatch_steps} with a recurrent policy, whose minibatches consist of "
            "whole "
            f"trajectories; expected a multiple of --n-rollout-steps, {steps_of_item}; change one of them"
        )
    return minibatch_steps // steps_of_item
