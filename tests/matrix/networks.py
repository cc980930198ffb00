"""A network of somebody's own, for any observation: `tests.matrix.networks:make`."""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from rollcast.services.spaces.spaces import space_leaves


class AllNumbers(nn.Module):
    """One layer from all numbers of the observation to the outputs."""

    def __init__(self, observation_space: gymnasium.Space[Any], n_outputs: int) -> None:
        super().__init__()
        n_inputs = sum(math.prod(leaf.shape or ()) for leaf in space_leaves(observation_space).values())
        self.last = nn.Linear(n_inputs, n_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        leaves = [leaf.reshape(len(leaf), -1).to(torch.float32) for leaf in observation.values()]
        return self.last(torch.cat(leaves, dim=1) / 255.0)


def make(observation_space: gymnasium.Space[Any], n_outputs: int) -> nn.Module:
    """Makes the network."""
    return AllNumbers(observation_space, n_outputs)
