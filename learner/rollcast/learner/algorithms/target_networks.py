"""Target networks: slow copies of networks that learn, for them to learn from."""

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from rollcast.learner.algorithms.flat_parameters import FlatParameters

_Module = TypeVar("_Module", bound=nn.Module)


class TargetNetwork(Generic[_Module]):
    """A copy of a module that follows it, Polyak-averaged or copied now and then.

    Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", https://arxiv.org/abs/1509.02971:

        theta' <- tau theta + (1 - tau) theta'

    Invariant: the copy's trainable parameters are a slice of one vector in the order of the source's, so that
    following is one operation, and no gradient flows into it. It never travels. Not thread-safe: it belongs to the
    algorithm's thread.

    Attributes:
        module: The copy; whoever loads a checkpoint copies into its parameters in place.
    """

    def __init__(self, source: _Module, parameters: FlatParameters) -> None:
        """Copies the source.

        Args:
            source: The module that learns, on its device.
            parameters: Of the source, and of nothing else.
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
            tau: In (0, 1], how far; 1 copies. Buffers, such as running statistics, are always copied.
        """
        if tau == 1.0:
            self._vector.copy_(self._source_vector)
        else:
            self._vector.lerp_(self._source_vector, tau)
        for own, buffer in self._buffers:
            own.copy_(buffer)
