"""Acts epsilon-greedily on the values of Discrete actions, in numpy, for deep Q-networks."""

import math
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import is_allowed
from rollcast.actor.policies.distributions import Action, ActionDistribution, Parameters
from rollcast.actor.policies.uniform_actions import UniformAllowedActions
from rollcast.services.errors import InvalidSpaceError
from rollcast.services.spaces.spaces import describe_space


class EpsilonGreedy(ActionDistribution):
    """A distribution over the best action, and with probability epsilon over all actions uniformly.

    Parameters are the values of the n actions of a Discrete space. With `dueling`, the parameters are the value of the
    observation, then the n advantages, with Q = V + A - mean(A) (Wang et al. 2016, https://arxiv.org/abs/1511.06581,
    equation 9). V and mean(A) are the same for all actions, so the best action has the highest advantage.

    The log-probability is log(1 - epsilon + epsilon / n) for the best action, and log(epsilon / n) for all others. It
    is at least the logarithm of the smallest normal float32, about -87.
    """

    def __init__(self, space: Space[Any], *, dueling: bool, epsilon: float = 0.0) -> None:
        """Reads the space.

        Args:
            space: The action space.
            dueling: True: the parameters are a value and advantages.
            epsilon: The rate of random actions, in [0, 1].

        Raises:
            InvalidSpaceError: If the space is not Discrete.
        """
        discrete = as_discrete(space)
        self._n = int(discrete.n)
        self._first = 1 if dueling else 0
        self.n_outputs = self.n_parameters = self._n + self._first
        self._start = int(discrete.start)
        self._dtype = discrete.dtype
        self._epsilon = epsilon
        tiny = float(np.finfo(np.float32).tiny)
        self._log_prob_of_best = np.float32(math.log(max(1.0 - epsilon + epsilon / self._n, tiny)))
        self._log_prob_of_others = np.float32(math.log(max(epsilon / self._n, tiny)))

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws an action from each distribution; see `ActionDistribution.sample`."""
        explores = rng.random(len(parameters), dtype=np.float32) < self._epsilon
        # Drawn even if no action is random, so that every call draws the same amount from the generator.
        anything = rng.integers(self._n, size=len(parameters))
        return self._as_action(np.where(explores, anything, self._best(parameters)))

    def mode(self, parameters: Parameters) -> Action:
        """Returns the best actions; see `ActionDistribution.mode`."""
        return self._as_action(self._best(parameters))

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns log-probabilities of actions; see `ActionDistribution.log_prob`."""
        is_best = self._best(parameters) == action - self._start
        return np.where(is_best, self._log_prob_of_best, self._log_prob_of_others)

    def _best(self, parameters: Parameters) -> NDArray[np.intp]:
        best: NDArray[np.intp] = parameters[..., self._first :].argmax(axis=-1)
        return best

    def _as_action(self, index: NDArray[np.intp]) -> Action:
        action: Action = (index + self._start).astype(self._dtype, copy=False)
        return action


class MaskedEpsilonGreedy(EpsilonGreedy):
    """`EpsilonGreedy` over the n allowed actions.

    Parameters must have passed through `ActionMask.forbid`. A forbidden action has the smallest log-probability, about
    -87.
    """

    def __init__(self, space: Space[Any], *, dueling: bool, epsilon: float = 0.0) -> None:
        """Reads the space; see `EpsilonGreedy`."""
        super().__init__(space, dueling=dueling, epsilon=epsilon)
        self._anything = UniformAllowedActions(space)

    def sample(self, parameters: Parameters, rng: np.random.Generator) -> Action:
        """Draws an action from each distribution; see `ActionDistribution.sample`."""
        explores = rng.random(len(parameters), dtype=np.float32) < self._epsilon
        return np.where(explores, self._anything.sample(parameters, rng), self.mode(parameters))

    def log_prob(self, parameters: Parameters, action: Action) -> NDArray[np.float32]:
        """Returns log-probabilities of actions; see `ActionDistribution.log_prob`."""
        index = (action - self._start).astype(np.intp, copy=False)
        allowed = is_allowed(parameters[..., self._first :])
        p_of_any = self._epsilon / allowed.sum(axis=-1)
        p = np.where(self._best(parameters) == index, 1.0 - self._epsilon + p_of_any, p_of_any)
        p *= np.take_along_axis(allowed, index[..., None], axis=-1)[..., 0]
        log_prob: NDArray[np.float32] = np.log(np.maximum(p, np.finfo(np.float32).tiny)).astype(np.float32)
        return log_prob


def as_discrete(space: Space[Any]) -> Discrete[Any]:
    """Returns the action space if it is Discrete; Q-values require this.

    Args:
        space: The action space.

    Raises:
        InvalidSpaceError: If the space is not Discrete.
    """
    if isinstance(space, Discrete):
        return space
    raise InvalidSpaceError(
        f"the action space is {describe_space(space)}; Q-values need Discrete; wrap the environment, or "
        "choose --algorithm ppo, appo or impala, which support this space, or sac for a Box with bounds"
    )
