"""Target networks: copies that follow a network slowly and give stable learning targets."""

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from rollcast.learner.algorithms.descent import FlatParameters

_Module = TypeVar("_Module", bound=nn.Module)


class TargetNetwork(Generic[_Module]):
    """A copy of a module that follows it by Polyak averaging, or by occasional copies.

    Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", https://arxiv.org/abs/1509.02971,
    algorithm 1:

        theta' <- tau theta + (1 - tau) theta'

    Invariant: the copy's trainable parameters are views of one vector in the source's order, so that following is one
    operation. The copy gets no gradients, and is never sent to actors. Not thread-safe: only the algorithm's thread
    uses it.

    Attributes:
        module: The copy. To load a checkpoint, copy into its parameters in place.
    """

    def __init__(self, source: _Module, parameters: FlatParameters) -> None:
        """Copies the source.

        Args:
            source: The module in training, on its device.
            parameters: The parameters of the source, and no others.
        """
        self.module: _Module = copy.deepcopy(source)
        self._source_vector = parameters.vector
        self._vector = FlatParameters({"target": self.module}).vector
        self._vector.requires_grad_(False)
        self._vector.grad = None
        self.module.requires_grad_(False)
        self._buffers = list(zip(self.module.buffers(), source.buffers(), strict=True))

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Moves the copy towards the source.

        Args:
            tau: Fraction of the way, in (0, 1]; 1 copies. Buffers, such as running statistics, are always copied.
        """
        if tau == 1.0:
            self._vector.copy_(self._source_vector)
        else:
            self._vector.lerp_(self._source_vector, tau)
        for own, buffer in self._buffers:
            own.copy_(buffer)
