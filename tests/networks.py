"""Policy networks for tests, importable by actor processes: `tests.networks:make_linear`."""

from collections.abc import Mapping
from typing import Any

import gymnasium
from torch import Tensor, nn


class Linear(nn.Module):
    """One layer."""

    def __init__(self, observation_space: gymnasium.Space[Any], n_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_space.shape[0], n_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.layer(observation[""])


def make_linear(observation_space: gymnasium.Space[Any], n_outputs: int) -> nn.Module:
    """A network of one's own."""
    return Linear(observation_space, n_outputs)


class Forgetful(nn.Module):
    """Two layers, with noise between them that is drawn from torch's global generator while it learns."""

    def __init__(self, observation_space: gymnasium.Space[Any], n_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], 8), nn.Dropout(0.5), nn.Linear(8, n_outputs))

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return self.layers(observation[""])
