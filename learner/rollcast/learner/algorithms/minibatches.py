"""The steps of a batch, and minibatches of them: of steps in any order, or of whole trajectories."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from rollcast.actor.policies.torch_recurrence import SequenceStarts


class Memory(NamedTuple):
    """The states of a recurrent policy in B whole trajectories.

    Attributes:
        initial_state: float32 `[B, S]`.
        starts: The rows `[T, B]` where the state does not follow from the row before.
    """

    initial_state: Tensor
    starts: SequenceStarts

    @property
    def n_trajectories(self) -> int:
        """B."""
        return len(self.initial_state)

    def at(self, index: Tensor) -> "Memory":
        """Returns the memory of the trajectories at an int64 index `[M]`."""
        return Memory(self.initial_state[index], SequenceStarts(*(rows[:, index] for rows in self.starts)))


class Steps(NamedTuple):
    """The N = T * B steps of a batch, or those of a minibatch: in any order, or whole trajectories, row by row.

    Attributes:
        observation: `[N, ...]` for every leaf, as networks see it.
        action: `[N, ...]`.
        log_prob: float32 `[N]`, under the policy that the surrogate's ratio is to.
        value: float32 `[N]`, by the critic before the first pass.
        advantage: float32 `[N]`.
        target: float32 `[N]`, of the critic.
        valid: float32 `[N]`, 1 where the step is a transition, else 0.
        memory: Of a recurrent policy, whose minibatches are whole trajectories; None without.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    valid: Tensor
    memory: Memory | None

    @property
    def n_items(self) -> int:
        """The number of steps, or, with a memory, of trajectories: what minibatches are drawn from."""
        return len(self.valid) if self.memory is None else self.memory.n_trajectories

    def at(self, index: Tensor) -> "Steps":
        """Returns the steps, or with a memory the trajectories, at an int64 index `[M]`."""
        n = self.n_items

        def taken(column: Tensor) -> Tensor:
            if self.memory is None:
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
            memory=None if self.memory is None else self.memory.at(index),
        )
