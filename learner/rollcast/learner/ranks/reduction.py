"""Reduces gradients and a few other numbers over the ranks of a run: the interface for algorithms."""

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from rollcast.actor.policies.torch_observation_moments import RunningMoments
from rollcast.learner.ranks.group import Group


class GradientReduction:
    """The reduction of a single learner, which leaves all values unchanged.

    Every value is a mean over a rank's own share of a batch, and comes with a count of the averaged terms. The mean
    over all ranks is the sum of count * mean, divided by the sum of the counts. So W ranks with batches of B make the
    same update as one learner with a batch of W * B. A rank without a share has a count of 0. No method waits for the
    device. Only the algorithm's thread uses it.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return 0

    def average(self, gradient: Tensor, terms: Sequence[Tensor], count: Tensor | float) -> Sequence[Tensor]:
        """Averages a gradient and further numbers over all ranks, in one operation.

        Args:
            gradient: float32 `[P]`, of the mean loss of this rank's share; overwritten with the mean over all ranks.
            terms: 0-dim tensors on the same device: means over the same share.
            count: The number of terms in these means, at least 0; 0-dim if it is a tensor.

        Returns:
            The terms, averaged in the same way.
        """
        del gradient, count
        return terms

    def mean_and_variance(self, values: Tensor, weight: Tensor, count: Tensor | float) -> tuple[Tensor, Tensor]:
        """Returns the mean and the variance of `values` over all ranks, each 0-dim.

        Args:
            values: float32 `[N]`.
            weight: float32 `[N]`, with sum 1 on this rank.
            count: The number of values with a weight.
        """
        del count
        mean = torch.dot(weight, values)
        return mean, torch.dot(weight, (values - mean).square_())

    def keep_apart(self, moments: RunningMoments) -> None:
        """Prepares running statistics for `share`. From then on, only `share` adds observations."""

    def share(self, moments: RunningMoments) -> None:
        """Merges the observations of all ranks since the last call into the running statistics of each rank."""

    def equal(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors, in place, by rank 0's tensors."""


# The default of every algorithm.
ALONE: Final = GradientReduction()


class RankReduction(GradientReduction):
    """The reduction over the ranks of a run.

    Args:
        group: Connects the ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._buffer = torch.zeros(0)

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._group.rank

    @torch.no_grad()
    def average(self, gradient: Tensor, terms: Sequence[Tensor], count: Tensor | float) -> Sequence[Tensor]:
        """Averages a gradient and further numbers; see `GradientReduction.average`."""
        n = gradient.numel()
        buffer = self._room(n + len(terms) + 1, gradient)
        buffer[:n] = gradient
        if terms:
            buffer[n:-1] = torch.stack(list(terms))
        # Not `buffer[-1] = 1.0`: for CUDA, torch copies that number from pageable memory, and the host waits.
        buffer[-1:].fill_(1.0)
        buffer *= count
        self._group.sum(buffer, "the gradient")
        total = buffer[-1].clamp(min=1.0)
        torch.div(buffer[:n], total, out=gradient)
        return (buffer[n:-1] / total).unbind()

    @torch.no_grad()
    def mean_and_variance(self, values: Tensor, weight: Tensor, count: Tensor | float) -> tuple[Tensor, Tensor]:
        """Computes mean and variance over all ranks; see `GradientReduction.mean_and_variance`."""
        mean, variance = super().mean_and_variance(values, weight, count)
        own = torch.zeros(3, dtype=torch.float64, device=values.device)
        own[0].fill_(count)
        own[1].copy_(mean)
        own[2].copy_(variance)
        n, means, variances = self._group.gather(own, "the moments of the advantages").unbind(1)
        share = n / n.sum().clamp(min=1.0)
        mean = torch.dot(share, means)
        variance = torch.dot(share, variances + (means - mean).square())
        return mean.to(values.dtype), variance.to(values.dtype)

    def keep_apart(self, moments: RunningMoments) -> None:
        """Prepares moments; see `GradientReduction.keep_apart`."""
        moments.keep_apart()

    def share(self, moments: RunningMoments) -> None:
        """Merges the observations of all ranks, in the order of ranks; see `GradientReduction.share`."""
        for part in self._group.gather(moments.take_apart(), "the moments of the observations").unbind(0):
            moments.merge_part(part)

    def equal(self, tensors: Iterable[Tensor]) -> None:
        """Replaces tensors by rank 0's tensors; see `GradientReduction.equal`."""
        for tensor in tensors:
            own = tensor.detach().contiguous()
            self._group.broadcast(own, "the parameters of rank 0")
            tensor.detach().copy_(own)

    def _room(self, n: int, like: Tensor) -> Tensor:
        """Returns a vector of n numbers, which the next call overwrites."""
        if self._buffer.numel() < n or self._buffer.device != like.device:
            self._buffer = torch.zeros(n, device=like.device)
        return self._buffer[:n]
