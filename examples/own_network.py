"""Your own policy network, and how to train it.

    rollcast train --network examples.own_network:make

`python examples/own_network.py` does the same. The learner calls the factory twice, for the policy and for the critic.
The two networks share no parameters. Start actors on other machines with the same `--network`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from rollcast.learner import main


class ResidualMlp(nn.Module):
    """An input layer, two residual blocks, and an output layer.

    Args:
        n_features: Size of the observation.
        n_outputs: Number of outputs for each observation.
        width: Size of the hidden layers.
    """

    def __init__(self, n_features: int, n_outputs: int, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(n_features, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.last = nn.Linear(width, n_outputs)
        with torch.no_grad():
            # nearly uniform actions, and values near 0, at the start
            self.last.weight.mul_(0.1)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Computes the outputs.

        Args:
            observation: `[N, ...]` for every leaf of the observation space, by path. The path of a Box is "".

        Returns:
            float32 `[N, n_outputs]`.
        """
        x = torch.tanh(self.first(observation[""].to(torch.float32)))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x)


def make(observation_space: gymnasium.Space[Any], n_outputs: int) -> nn.Module:
    """Makes the network. `n_outputs` is the number of the distribution's parameters, or 1 for the critic."""
    assert observation_space.shape is not None, "made for vectors"
    return ResidualMlp(observation_space.shape[0], n_outputs)


if __name__ == "__main__":
    sys.exit(main(["train", "--network", "examples.own_network:make", *sys.argv[1:]]))
