"""Samples the tanh-squashed Gaussian with reparameterisation, and computes gradients, in torch, for losses."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from gymnasium import Space
from torch import Tensor

from rollcast.actor.policies.distributions import HALF_LOG_TWO_PI, LOG_STD_MAX, LOG_STD_MIN
from rollcast.actor.policies.squashed_gaussian import LOG_TWO, finite_bounds


class SquashedSample(NamedTuple):
    """Reparameterised samples, without an autograd graph.

    Attributes:
        action: float32 `[N, D]` in [-1, 1]: tanh(u), u = mean + std * noise.
        log_prob: float32 `[N]`, log-density of `action`.
        deviation: float32 `[N, D]`, std * noise.
        is_free: bool `[N, D]`. True: the log standard deviation is within its bounds, and so has a gradient.
    """

    action: Tensor
    log_prob: Tensor
    deviation: Tensor
    is_free: Tensor


class TorchSquashedGaussian:
    """`squashed_gaussian.SquashedGaussian` in torch, with the Box scaled to [-1, 1]^D.

    Densities use these units, too. So the entropy does not depend on the width of the Box, and soft actor-critic's
    target -D has the same meaning in every environment. In the units of the Box, a log-density is smaller by
    `log_half_width`. Immutable, therefore thread-safe.

    Attributes:
        log_half_width: The sum of log(width / 2) over the Box's dimensions.
    """

    def __init__(self, space: Space[Any], *, device: torch.device | str = "cpu") -> None:
        """Reads the bounds.

        Args:
            space: The action space.
            device: The device of the tensors.

        Raises:
            InvalidSpaceError: If the space is not a Box of floats with finite bounds, low below high.
        """
        low, high = finite_bounds(space)
        self._n_dimensions = low.size
        self._centre = torch.as_tensor(0.5 * (low + high), dtype=torch.float32, device=device)
        self._half_width = torch.as_tensor(0.5 * (high - low), dtype=torch.float32, device=device)
        self.log_half_width = float(self._half_width.log().sum())

    def normalise(self, action: Tensor) -> Tensor:
        """Scales actions of the Box to [-1, 1].

        Args:
            action: `[N, ...]`, in the space's dtype.

        Returns:
            float32 `[N, D]`.
        """
        return (action.reshape(-1, self._n_dimensions).to(torch.float32) - self._centre) / self._half_width

    @torch.no_grad()
    def sample(self, parameters: Tensor, noise: Tensor) -> SquashedSample:
        """Computes actions from noise.

        Args:
            parameters: float32 `[N, 2 D]`, D means and then D log standard deviations.
            noise: float32 `[N, D]`, standard normal.

        Returns:
            The samples, for `parameters_gradient`.
        """
        mean, raw_log_std = parameters.chunk(2, dim=-1)
        log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        deviation = log_std.exp() * noise
        u = mean + deviation
        # log(1 - tanh(u)^2), as in `squashed_gaussian`.
        log_slope = 2.0 * (LOG_TWO - u - F.softplus(-2.0 * u))
        log_prob = -(0.5 * noise * noise + log_std + log_slope + HALF_LOG_TWO_PI).sum(dim=-1)
        return SquashedSample(u.tanh(), log_prob, deviation, raw_log_std == log_std)

    @torch.no_grad()
    def parameters_gradient(self, sample: SquashedSample, action_gradient: Tensor, temperature: Tensor) -> Tensor:
        """Returns the gradient of `sum(temperature * log_prob) + f(action)` with respect to the parameters.

        With a = tanh(u) and u = mean + std * noise, d log_prob / du = 2 a and da / du = 1 - a^2, so that

            d / d mean    = 2 temperature a + f'(a) (1 - a^2) =: g
            d / d log_std = g * std * noise - temperature

        Args:
            sample: The result of `sample`.
            action_gradient: float32 `[N, D]`, f'(action).
            temperature: 0-dim.

        Returns:
            float32 `[N, 2 D]`.
        """
        action = sample.action
        mean_gradient = 2.0 * temperature * action + action_gradient * (1.0 - action * action)
        log_std_gradient = (mean_gradient * sample.deviation - temperature).mul_(sample.is_free)
        return torch.cat([mean_gradient, log_std_gradient], dim=-1)
