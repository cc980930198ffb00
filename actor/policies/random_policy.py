"""Acting uniformly at random, to fill a replay buffer before there is a policy."""

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from actor.policies.distributions import Action, Parameters
from actor.policies.policy import Policy, check_policy_state
from services.policies import PolicyState
from services.rollouts import Observation
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces


class RandomPolicy(Policy):
    """Draws from the action space as gymnasium does.

    Discrete, MultiDiscrete, MultiBinary and bounded Box elements are uniform, elements bounded on one side are
    exponential from there, and unbounded ones standard normal. There are no weights: its parameters are all 0 and its
    version is 0. Acting deterministically makes no sense here and is the same as sampling.
    """

    def __init__(self, spaces: EnvironmentSpaces, *, seed: int) -> None:
        """Prepares for the spaces.

        Args:
            spaces: The environment's spaces by substep key.
            seed: Seeds the sampling of actions.

        Raises:
            InvalidSpaceError: If an action space is of a kind that is not supported.
        """
        super().__init__(spaces, seed=seed)
        self._boxes = {key: _BoxSampler(s.action) for key, s in spaces.items() if isinstance(s.action, Box)}

    def act(
        self, observation: Observation, *, deterministic: bool = False, substep_key: str = FLAT_SUBSTEP
    ) -> tuple[Action, Parameters]:
        """Draws an action for each observation; arguments and returns are those of `Policy.act`."""
        parameters = self._parameters_of(observation, substep_key)
        if substep_key in self._boxes:
            return self._boxes[substep_key].sample(len(parameters), self._rng), parameters
        # All logits 0 is the uniform distribution.
        return self._distributions[substep_key].sample(parameters, self._rng), parameters

    def log_prob(self, parameters: Parameters, action: Action, substep_key: str = FLAT_SUBSTEP) -> NDArray[np.float32]:
        """Log-probability (for Box: density); arguments and returns are those of `Policy.log_prob`."""
        if substep_key in self._boxes:
            return self._boxes[substep_key].log_prob(action)
        return super().log_prob(parameters, action, substep_key)

    def _parameters_of(self, observation: Observation, substep_key: str) -> Parameters:
        n = len(next(iter(observation.values())))
        return np.zeros((n, self._distributions[substep_key].n_parameters), dtype=np.float32)

    def _load(self, state: PolicyState) -> None:
        check_policy_state({}, state)


class _BoxSampler:
    """Draws from a Box element by element, each according to its bounds."""

    def __init__(self, space: Box) -> None:
        self._shape = space.shape
        self._dtype = space.dtype
        self._low = space.low.astype(np.float64)
        self._high = space.high.astype(np.float64)
        self._bounded = space.bounded_below & space.bounded_above
        self._only_below = space.bounded_below & ~space.bounded_above
        self._only_above = space.bounded_above & ~space.bounded_below
        width = np.where(self._bounded, self._high, 1.0) - np.where(self._bounded, self._low, 0.0)
        self._log_width = np.log(np.maximum(width, np.finfo(np.float32).tiny))

    def sample(self, n: int, rng: np.random.Generator) -> Action:
        """Draws `[n, ...]`."""
        shape = (n, *self._shape)
        action = rng.standard_normal(shape)
        uniform = rng.uniform(np.where(self._bounded, self._low, 0.0), np.where(self._bounded, self._high, 1.0), shape)
        exponential = rng.standard_exponential(shape)
        np.copyto(action, uniform, where=self._bounded)
        np.copyto(action, self._low + exponential, where=self._only_below)
        np.copyto(action, self._high - exponential, where=self._only_above)
        return action.astype(self._dtype)

    def log_prob(self, action: Action) -> NDArray[np.float32]:
        """Log-density of `[..., ...]`: `[...]`."""
        normal = -0.5 * np.square(action, dtype=np.float64) - 0.5 * np.log(2.0 * np.pi)
        log_density = np.where(self._bounded, -self._log_width, normal)
        log_density = np.where(self._only_below, self._low - action, log_density)
        log_density = np.where(self._only_above, action - self._high, log_density)
        axes = tuple(range(action.ndim - len(self._shape), action.ndim))
        total: NDArray[np.float32] = log_density.sum(axis=axes).astype(np.float32)
        return total
