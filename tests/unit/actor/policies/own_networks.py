"""Networks of one's own, right and wrong."""

import math

import torch
from torch import nn

from rollcast.actor.statistics.events import define_episode_stats, define_epoch_stats
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.services.spaces.spaces import space_leaves


class Own(nn.Module):
    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.output = nn.Linear(4, n_outputs)

    def forward(self, observation):
        return self.output(self.norm(observation[""]))


class SeesItsMask(nn.Module):
    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.output = nn.Linear(3 + observation_space["action_mask"].shape[0], n_outputs)

    def forward(self, observation):
        return self.output(torch.cat([observation["seen"], observation["action_mask"].float()], dim=1))


def no_module(observation_space, n_outputs):
    return lambda observation: observation


def broken(observation_space, n_outputs):
    raise ValueError("no such layer")


class WrongShape(Own):
    def forward(self, observation):
        return super().forward(observation)[:, :1]


class WrongPath(Own):
    def forward(self, observation):
        return observation["position"]


class NoTensor(nn.Module):
    def __init__(self, observation_space, n_outputs):
        super().__init__()

    def forward(self, observation):
        return [torch.zeros(1)]


class OutputEvents:
    @define_epoch_stats("mean")
    @define_episode_stats("mean")
    def widest_output(self, value):
        pass


class Telling(FiresEvents, Own):
    def forward(self, observation):
        outputs = super().forward(observation)
        self.events(OutputEvents).widest_output(float(outputs.max()))
        return outputs


class SumOfLeaves(nn.Module):
    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(math.prod(leaf.shape), n_outputs) for leaf in space_leaves(observation_space).values()
        )

    def forward(self, observation):
        leaves = observation.values()
        return sum(layer(leaf.float().flatten(1)) for layer, leaf in zip(self.layers, leaves, strict=True))


class NotForOnnx(nn.Module):
    def __init__(self, observation_space, n_outputs):
        super().__init__()
        self.output = nn.Linear(observation_space.shape[0], n_outputs)

    def forward(self, observation):
        return self.output(torch.fft.fft(observation[""]).real)
