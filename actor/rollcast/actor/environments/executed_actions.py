"""The one rule of what an environment is given for an action that a policy has chosen."""

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray


class ExecutedActions:
    """Turns actions that a policy has chosen into those that the environment executes.

        executed = ExecutedActions(action_space)
        env.step(executed(action))

    Actions of a Box are clipped to its bounds; all others are executed as they are. A Gaussian policy may choose
    outside the bounds, and rollouts record what it chose: only that has the log-probability beside it. Everybody who
    steps an environment, answers with actions, or learns from the actions that were executed uses this rule.

    Stateless: any thread may call it.

    Attributes:
        bounds: The lowest and the highest action, each in the shape and dtype of the space; None where nothing is
            clipped.
    """

    bounds: tuple[NDArray[Any], NDArray[Any]] | None

    def __init__(self, action_space: Space[Any]) -> None:
        """Looks at the bounds.

        Args:
            action_space: Of any kind.
        """
        self.bounds = None
        if isinstance(action_space, Box) and (action_space.bounded_below.any() or action_space.bounded_above.any()):
            self.bounds = action_space.low, action_space.high

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        """Returns what the environment is given.

        Args:
            action: `[..., *shape]` in the dtype of the space; it is not changed.

        Returns:
            Actions of the same shape and dtype: a fresh array, or `action` itself where nothing is clipped.
        """
        if self.bounds is None:
            return action
        clipped: NDArray[Any] = np.clip(action, *self.bounds)
        return clipped
