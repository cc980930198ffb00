"""Networks for images, in torch: the Nature CNN, and the shallow and the residual network of IMPALA."""

import math
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from rollcast.actor.policies.features import ImageLayout
from rollcast.actor.policies.network_arithmetic import hidden_layers, scaled_pixels
from rollcast.actor.policies.network_size import (
    IMPALA_SHALLOW,
    N_RESNET_FEATURES,
    NATURE_CNN,
    RESNET_CHANNELS,
    CnnShape,
    side_after_convolutions,
    side_after_stages,
)

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


class _Cnn(nn.Module):
    """Convolutions and a full layer, with ReLUs."""

    shape: ClassVar[CnnShape]

    def __init__(self, size: tuple[int, int, int], layout: ImageLayout) -> None:
        """Builds the layers.

        Args:
            size: Height, width and channels, from `features.image_size`.
            layout: Position of the channels.
        """
        super().__init__()
        self._layout: ImageLayout = layout
        height, width, channels = size
        gain = math.sqrt(2.0)
        self.convolutions = nn.Sequential()
        for kernel, stride, n_out in self.shape.convolutions:
            self.convolutions.append(orthogonal(nn.Conv2d(channels, n_out, kernel_size=kernel, stride=stride), gain))
            self.convolutions.append(nn.ReLU())
            channels = n_out
        n_pixels = math.prod(side_after_convolutions(side, self.shape) for side in (height, width))
        self.full = orthogonal(nn.Linear(channels * n_pixels, self.shape.n_features), gain)

    def forward(self, image: Tensor) -> Tensor:
        """Computes the features of images.

        Args:
            image: uint8 `[N, H, W, C]` or `[N, C, H, W]`; of stacks with K after N.

        Returns:
            float32 `[N, F]`.
        """
        with hidden_layers(image.device):
            x = self.convolutions(_pixels(image, self._layout))
            features = torch.relu(self.full(x.flatten(1)))
        return features.to(torch.float32)


class NatureCnn(_Cnn):
    """The convolutional part of the deep Q-network, F = 512.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518.
    """

    shape = NATURE_CNN


class ImpalaShallow(_Cnn):
    """The shallow network of IMPALA and of A3C, F = 256: a third of the Nature CNN's multiplications.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3, left; `RecurrentNetwork` adds the recurrent layer.
    """

    shape = IMPALA_SHALLOW


class ImpalaResnet(nn.Module):
    """The residual network of IMPALA: three stages of a convolution, 3 by 3 max-pooling, and two residual blocks.

    Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    https://arxiv.org/abs/1802.01561, figure 3, right; `RecurrentNetwork` adds the recurrent layer.
    """

    def __init__(self, size: tuple[int, int, int], layout: ImageLayout) -> None:
        """Builds the layers.

        Args:
            size: Height, width and channels, from `features.image_size`.
            layout: Position of the channels.
        """
        super().__init__()
        self._layout: ImageLayout = layout
        height, width, channels = size
        self.stages = nn.Sequential()
        for n_out in RESNET_CHANNELS:
            self.stages.append(_convolution(channels, n_out))
            self.stages.append(nn.MaxPool2d(3, stride=2, padding=1))
            self.stages.append(_ResidualBlock(n_out))
            self.stages.append(_ResidualBlock(n_out))
            channels = n_out
        n_pixels = side_after_stages(height) * side_after_stages(width)
        self.full = orthogonal(nn.Linear(channels * n_pixels, N_RESNET_FEATURES), math.sqrt(2.0))

    def forward(self, image: Tensor) -> Tensor:
        """Computes the features of images.

        Args:
            image: uint8 `[N, H, W, C]` or `[N, C, H, W]`; of stacks with K after N.

        Returns:
            float32 `[N, 256]`.
        """
        with hidden_layers(image.device):
            x = self.stages(_pixels(image, self._layout))
            features = torch.relu(self.full(torch.relu(x).flatten(1)))
        return features.to(torch.float32)


class _ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels)
        self.second = _convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the block, `[N, C, H, W]` to the same shape."""
        computed: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + computed


def orthogonal(layer: _Layer, gain: float) -> _Layer:
    """Initialises a layer with orthogonal weights times a gain, and a bias of 0; returns the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _convolution(n_in: int, n_out: int) -> nn.Conv2d:
    return orthogonal(nn.Conv2d(n_in, n_out, kernel_size=3, padding=1), 1.0)


def _pixels(image: Tensor, layout: ImageLayout) -> Tensor:
    """Returns `[N, channels, H, W]`, 0 to 1, in the format of hidden layers."""
    if layout == "channel_last":
        image = image.movedim(-1, -3)
    if image.ndim == 5:
        image = image.flatten(1, 2)
    return scaled_pixels(image)
