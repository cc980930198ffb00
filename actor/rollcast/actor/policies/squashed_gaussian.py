"""Samples the tanh-squashed Gaussian over a bounded Box, in numpy, for soft actor-critic."""

import math
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rollcast.actor.policies.distributions import HALF_LOG_TWO_PI, Action, Gaussian, Parameters
from rollcast.services.errors import InvalidSpaceError
from rollcast.services.spaces.spaces import describe_space

LOG_TWO = math.log(2.0)
# An action at a bound has no finite u. In float32, tanh is 1 from u = 9 on. This limit is u = 7.25.
_LARGEST_TANH = 1.0 - 1e-6


class SquashedGaussian(Gaussian):
    """The distribution over a Box with finite bounds. Its parameters are D means, then D log standard deviations.

    An action is `a = centre + half_width * tanh(u)` with a Gaussian u. The action's density is (Haarnoja et al. 2018b,
    https://arxiv.org/abs/1812.05905, appendix C):

        log pi(a) = log N(u; mean, std) - sum[ log half_width + log(1 - tanh(u)^2) ]

    with `log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))`, which is numerically stable. atanh recovers u from an
    action, after tanh(u) is clipped to +-(1 - 1e-6). Beyond this limit, the log-density is the value at the limit. The
    mode is the squashed mode of u.
    """

    def __init__(self, space: Space[Any]) -> None:
        """Reads the bounds.

        Args:
            space: The action space.

        Raises:
            InvalidSpaceError: If it is not a Box of floats with finite bounds, low below high.
        """
        super().__init__(space)
        self._low, self._high = finite_bounds(space)
        self._centre = 0.5 * (self._low + self._high)
        self._half_width = 0.5 * (self._high - self._low)
        self._log_half_width = float(np.log(self._half_width).sum())
        self.n_outputs = self.n_parameters

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns log-densities of actions; see `ActionDistribution.log_prob`."""
        mean, log_std = self._split(parameters)
        squashed = (action.reshape(mean.shape) - self._centre) / self._half_width
        u = np.arctanh(np.clip(squashed, -_LARGEST_TANH, _LARGEST_TANH))
        z = (u - mean) * np.exp(-log_std)
        log_slope = 2.0 * (LOG_TWO - u - np.logaddexp(0.0, -2.0 * u))
        log_density = -(0.5 * z * z + log_std + HALF_LOG_TWO_PI + log_slope).sum(axis=-1) - self._log_half_width
        total: NDArray[np.float32] = log_density.astype(np.float32)
        return total

    def _as_action(self, drawn: Parameters) -> Action:
        action = self._centre + self._half_width * np.tanh(drawn)
        # Rounding must not leave the space.
        np.clip(action, self._low, self._high, out=action)
        return action.astype(self._dtype, copy=False).reshape(-1, *self._shape)


def finite_bounds(space: Space[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the bounds of a Box, if they are finite.

    Args:
        space: The action space.

    Returns:
        Low and high, each `[D]`.

    Raises:
        InvalidSpaceError: If it is not a Box of floats with finite bounds, low below high.
    """
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        if np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all():
            return low, high
    raise InvalidSpaceError(
        f"the action space is {describe_space(space)}; a squashed Gaussian needs a Box with a float dtype whose bounds "
        "are finite, low below high; give its Box bounds in the environment, or choose --algorithm ppo, appo or "
        "impala, which need no bounds"
    )
