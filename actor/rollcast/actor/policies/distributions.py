"""Distributions over actions, in numpy, for actors.

A network returns `n_outputs` numbers for an observation. A distribution has `n_parameters` parameters. The two numbers
differ only for Box spaces: the parameters are the network's means, then log standard deviations. These standard
deviations do not depend on the observation.
`torch_distributions` has the differentiable versions.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from rollcast.services.errors import InvalidSpaceError
from rollcast.services.spaces.spaces import describe_space

Parameters = NDArray[np.float32]
Action = NDArray[Any]

# exp(-20) is a deterministic policy in float32; exp(2) leaves any sensible action range. Soft actor-critic's bounds.
LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# The ziggurat returns exactly 0 once in 8 million float32 draws.
_TINY = np.float32(1e-30)


class ActionDistribution(ABC):
    """A family of distributions over the actions of one space.

    Stateless: any thread may call it.

    Attributes:
        n_outputs: The number of the network's outputs for an observation.
        n_parameters: P, the number of parameters of one distribution.
    """

    n_outputs: int
    n_parameters: int

    @abstractmethod
    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws an action from each distribution.

        Args:
            parameters: float32 `[B, P]`.
            rng: The random generator.

        Returns:
            `[B, ...]` in the space's dtype, a fresh array.
        """

    @abstractmethod
    def mode(self, parameters: Parameters) -> Action:
        """Returns the greedy (most likely) action of each distribution.

        Args:
            parameters: float32 `[B, P]`.

        Returns:
            `[B, ...]` in the space's dtype, a fresh array.
        """

    @abstractmethod
    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns the log-probability (for Box: log-density) of actions.

        Args:
            parameters: float32 `[..., P]`.
            action: `[..., ...]`, as `sample` returned it.

        Returns:
            float32 `[...]`.
        """


def action_distribution(action_space: Space[Any]) -> ActionDistribution:
    """Returns the distribution over a space's actions.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, or Box of floats.

    Raises:
        InvalidSpaceError: If the space is of another kind.
    """
    if isinstance(action_space, Discrete):
        return _Categorical(action_space)
    if isinstance(action_space, MultiDiscrete):
        return _Categoricals(action_space)
    if isinstance(action_space, MultiBinary):
        return _Bernoullis(action_space)
    if isinstance(action_space, Box) and np.issubdtype(action_space.dtype, np.floating):
        return _DiagonalGaussian(action_space)
    raise unsupported_actions(action_space)


def unsupported_actions(action_space: Space[Any]) -> InvalidSpaceError:
    """Returns the error for actions of an unsupported kind."""
    return InvalidSpaceError(
        f"the action space is {describe_space(action_space)}; expected Discrete, MultiDiscrete, MultiBinary, or Box "
        "with a float dtype; wrap the environment so that its actions are one of these"
    )


def _negative_gumbel(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Draws log(E), E exponential: the negative of Gumbel noise, faster than `rng.gumbel`."""
    noise = rng.standard_exponential(shape, dtype=np.float32)
    np.maximum(noise, _TINY, out=noise)
    return np.log(noise, out=noise)


def _log_softmax_at(logits: Parameters, index: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the log-softmax over the last axis, at one index of it: `[..., n]`, `[...]` -> `[...]`."""
    # Categories first: numpy reduces a long last axis of short rows three times as fast across them as along them.
    columns = np.ascontiguousarray(logits.reshape(-1, logits.shape[-1]).T)
    columns = columns - np.maximum.reduce(columns, axis=0)
    chosen = columns[index.reshape(-1), np.arange(columns.shape[1])]
    result: NDArray[np.float32] = chosen - np.log(np.add.reduce(np.exp(columns), axis=0))
    return result.reshape(index.shape)


class _FromLogits(ActionDistribution):
    """A distribution with logits as parameters; `_as_action` returns the actions with the highest scores."""

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        # argmax(logits + Gumbel) is a sample of the softmax (the Gumbel-max trick): no normalising, no cumulative sums.
        noise = _negative_gumbel(parameters.shape, rng)
        return self._as_action(np.subtract(parameters, noise, out=noise))

    def mode(self, parameters: Parameters) -> Action:
        return self._as_action(parameters)

    @abstractmethod
    def _as_action(self, scores: NDArray[np.float32]) -> Action: ...


class _Categorical(_FromLogits):
    """The distribution over a Discrete space; parameters are logits."""

    def __init__(self, space: Discrete[Any]) -> None:
        self.n_outputs = self.n_parameters = int(space.n)
        self._start = space.start
        self._dtype = space.dtype

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        return _log_softmax_at(parameters, (action - self._start).astype(np.intp, copy=False))

    def _as_action(self, scores: NDArray[np.float32]) -> Action:
        action: Action = scores.argmax(axis=-1).astype(self._dtype, copy=False)
        if self._start:
            action += self._start
        return action


class _Categoricals(_FromLogits):
    """The distribution over a MultiDiscrete space; parameters are the logits of each element, in order."""

    def __init__(self, space: MultiDiscrete[Any]) -> None:
        sizes = space.nvec.ravel()
        self.n_outputs = self.n_parameters = int(sizes.sum())
        self._ends = np.cumsum(sizes)
        self._slices = [slice(int(end - n), int(end)) for n, end in zip(sizes, self._ends, strict=True)]
        self._start = space.start.ravel()
        self._shape = space.shape
        self._dtype = space.dtype

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        lead = parameters.shape[:-1]
        index = (action.reshape(*lead, -1) - self._start).astype(np.intp, copy=False)
        total = np.zeros(lead, dtype=np.float32)
        for element, part in enumerate(self._slices):
            total += _log_softmax_at(parameters[..., part], index[..., element])
        return total

    def _as_action(self, scores: NDArray[np.float32]) -> Action:
        action = np.empty((len(scores), len(self._slices)), dtype=self._dtype)
        for element, part in enumerate(self._slices):
            action[:, element] = scores[:, part].argmax(axis=-1)
        action += self._start
        return action.reshape(-1, *self._shape)


class _Bernoullis(_FromLogits):
    """The distribution over a MultiBinary space; parameters are the logits of a one."""

    def __init__(self, space: MultiBinary) -> None:
        self._shape = space.shape
        self.n_outputs = self.n_parameters = math.prod(self._shape)

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        # The difference of two Gumbels is logistic noise; unlike comparing with a sigmoid, it cannot overflow.
        noise = _negative_gumbel((2, *parameters.shape), rng)
        return self._as_action(parameters - (noise[0] - noise[1]))

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        one = action.reshape(parameters.shape) != 0
        signed = np.where(one, -parameters, parameters)
        total: NDArray[np.float32] = -np.logaddexp(np.float32(0.0), signed).sum(axis=-1)
        return total

    def _as_action(self, scores: NDArray[np.float32]) -> Action:
        return (scores > 0.0).astype(np.int8).reshape(-1, *self._shape)


class Gaussian(ActionDistribution):
    """A distribution of D Gaussians. Its parameters are D means, then D log standard deviations.

    `_as_action` turns the drawn numbers, a fresh array, into actions.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._shape: tuple[int, ...] = space.shape or ()
        self._dtype = space.dtype
        self._n = math.prod(self._shape)
        self.n_parameters = 2 * self._n

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws actions; see `ActionDistribution.sample`."""
        mean, log_std = self._split(parameters)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        noise *= np.exp(log_std)
        noise += mean
        return self._as_action(noise)

    def mode(self, parameters: Parameters) -> Action:
        """Returns the actions at the means; see `ActionDistribution.mode`."""
        return self._as_action(self._split(parameters)[0].copy())

    def _split(self, parameters: Parameters) -> tuple[Parameters, Parameters]:
        return parameters[..., : self._n], np.clip(parameters[..., self._n :], LOG_STD_MIN, LOG_STD_MAX)

    @abstractmethod
    def _as_action(self, drawn: Parameters) -> Action: ...


class _DiagonalGaussian(Gaussian):
    """The distribution over a Box.

    Actions are neither squashed nor clipped: rollouts record the unbounded sample, whose density is exact.
    `ExecutedActions` clips to the bounds.
    """

    def __init__(self, space: Box[Any]) -> None:
        super().__init__(space)
        self.n_outputs = self._n

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        mean, log_std = self._split(parameters)
        z = (action.reshape(mean.shape).astype(np.float32, copy=False) - mean) * np.exp(-log_std)
        total: NDArray[np.float32] = -(0.5 * z * z + log_std + np.float32(HALF_LOG_TWO_PI)).sum(axis=-1)
        return total

    def _as_action(self, drawn: Parameters) -> Action:
        return drawn.astype(self._dtype, copy=False).reshape(-1, *self._shape)
