"""Draws actions from the action space, like gymnasium: from all actions, or from the allowed actions."""

from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import FORBIDDEN, action_mask_of, is_allowed
from rollcast.actor.policies.distributions import Action, Parameters, action_distribution, unsupported_actions
from rollcast.services.spaces.spaces import SubstepSpaces


class ActionSampler(Protocol):
    """A sampler that ignores the network's outputs. Samplers are stateless, so any thread may call them."""

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws one action for each row of `parameters`, `[B, P]`: a fresh array `[B, ...]` in the space's dtype."""

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns the log-probability (for Box: log-density) of actions `[..., ...]`: float32 `[...]`."""


def uniform_actions(spaces: SubstepSpaces) -> ActionSampler:
    """Returns a sampler of a substep's actions. If observations have an action mask, it draws only allowed actions.

    Args:
        spaces: The substep's spaces. The action space is Discrete, MultiDiscrete, MultiBinary, or Box of floats.

    Raises:
        InvalidSpaceError: If the action space is of another kind, or the observation's action mask has a wrong space.
    """
    return UniformActions(spaces.action) if action_mask_of(spaces) is None else UniformAllowedActions(spaces.action)


class UniformActions:
    """A sampler that draws from the whole space.

    Elements of Discrete, MultiDiscrete, MultiBinary and bounded Box spaces are uniform. Box elements with one bound are
    exponential from that bound. Unbounded elements are standard normal. Stateless: any thread may call it.
    """

    def __init__(self, space: Space[Any]) -> None:
        """Reads the space.

        Args:
            space: Discrete, MultiDiscrete, MultiBinary, or Box of floats.

        Raises:
            InvalidSpaceError: If the space is of another kind.
        """
        self._box = _BoxSampler(space) if isinstance(space, Box) else None
        self._shape: tuple[int, ...] = space.shape or ()
        self._dtype = space.dtype
        start_and_sizes: tuple[Any, Any] = (0, 1) if self._box is not None else _elements(space)
        self._start, self._sizes = start_and_sizes

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws one action for each row of `parameters`, `[B, P]`, and ignores their values; see `ActionSampler`."""
        n = len(parameters)
        if self._box is not None:
            return self._box.sample(n, rng).astype(self._dtype)
        action: Action = rng.integers(0, self._sizes, (n, *self._shape)) + self._start
        return action.astype(self._dtype, copy=False)

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns log-probabilities of actions, and ignores the parameters; see `ActionSampler`."""
        if self._box is not None:
            return self._box.log_prob(action)
        lead = action.shape[: action.ndim - len(self._shape)]
        return np.full(lead, -np.log(np.broadcast_to(self._sizes, self._shape)).sum(), dtype=np.float32)


class UniformAllowedActions:
    """A sampler that draws uniformly from the allowed actions of a Discrete or MultiDiscrete space.

    Parameters must have passed through `ActionMask.forbid`. All values other than `FORBIDDEN` are ignored.
    """

    def __init__(self, space: Space[Any]) -> None:
        """Reads the space.

        Args:
            space: Discrete or MultiDiscrete.
        """
        self._distribution = action_distribution(space)

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws one action for each row of `parameters`, `[B, P]`; see `ActionSampler`."""
        return self._distribution.sample(self._equal_logits(parameters), rng)

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns log-probabilities of actions; see `ActionSampler`."""
        return self._distribution.log_prob(self._equal_logits(parameters), action)

    def _equal_logits(self, parameters: Parameters) -> Parameters:
        allowed = is_allowed(parameters[..., -self._distribution.n_parameters :])
        return np.where(allowed, np.float32(0.0), np.float32(FORBIDDEN))


def _elements(space: Space[Any]) -> tuple[Any, Any]:
    """Returns the first value and the number of values of each element."""
    if isinstance(space, Discrete):
        return int(space.start), int(space.n)
    if isinstance(space, MultiDiscrete):
        return space.start.astype(np.int64), space.nvec.astype(np.int64)
    if isinstance(space, MultiBinary):
        return 0, 2
    raise unsupported_actions(space)


class _BoxSampler:
    """A sampler of a Box that draws each element according to its bounds."""

    def __init__(self, space: Box[Any]) -> None:
        self._shape = space.shape
        self._low = space.low.astype(np.float64)
        self._high = space.high.astype(np.float64)
        self._bounded = space.bounded_below & space.bounded_above
        self._only_below = space.bounded_below & ~space.bounded_above
        self._only_above = space.bounded_above & ~space.bounded_below
        width = np.where(self._bounded, self._high, 1.0) - np.where(self._bounded, self._low, 0.0)
        self._log_width = np.log(np.maximum(width, np.finfo(np.float32).tiny))

    def sample(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draws `[n, ...]`."""
        shape = (n, *self._shape)
        if self._bounded.all():
            return rng.uniform(self._low, self._high, shape)
        action = rng.standard_normal(shape)
        uniform = rng.uniform(np.where(self._bounded, self._low, 0.0), np.where(self._bounded, self._high, 1.0), shape)
        exponential = rng.standard_exponential(shape)
        np.copyto(action, uniform, where=self._bounded)
        np.copyto(action, self._low + exponential, where=self._only_below)
        np.copyto(action, self._high - exponential, where=self._only_above)
        return action

    def log_prob(self, action: Action) -> NDArray[np.float32]:
        """Returns the log-density of `[..., ...]`: `[...]`."""
        normal = -0.5 * np.square(action, dtype=np.float64) - 0.5 * np.log(2.0 * np.pi)
        log_density = np.where(self._bounded, -self._log_width, normal)
        log_density = np.where(self._only_below, self._low - action, log_density)
        log_density = np.where(self._only_above, action - self._high, log_density)
        axes = tuple(range(action.ndim - len(self._shape), action.ndim))
        total: NDArray[np.float32] = log_density.sum(axis=axes).astype(np.float32)
        return total
