"""Carries the states of a recurrent policy from step to step, and sets them to 0 where episodes begin."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.base import Policy, RecurrentState


class RecurrentStates:
    """The recurrent states of a vector's environments; nothing for a policy that is not recurrent.

    With NEXT_STEP, the row after the end of an episode shows its final observation and is no transition: the old state
    goes on in it, so that a learner can value that observation, and is 0 in the row after it. With SAME_STEP, the row
    after the end begins an episode.

    Attributes:
        current: float32 `[B, S]`, for the next observations; `Policy.act` changes it in place. None: not recurrent.
    """

    def __init__(self, policy: Policy, n_envs: int, *, has_reset_rows: bool) -> None:
        """Begins with zeros.

        Args:
            policy: The policy that acts.
            n_envs: B.
            has_reset_rows: Whether the row after the end of an episode is no transition.
        """
        self.current = policy.initial_state(n_envs)
        self._has_reset_rows = has_reset_rows
        self._initial: RecurrentState | None = None
        self._ended: NDArray[np.bool_] = np.zeros(n_envs, np.bool_)

    def begin_rollout(self) -> None:
        """Notes the states with which a rollout begins."""
        if self.current is not None:
            self._initial = self.current.copy()

    def end_step(self, ended: NDArray[np.bool_], dropped: Sequence[int]) -> None:
        """Sets the states of environments whose next row begins an episode to 0.

        Args:
            ended: bool `[B]`: the episode ended in the step.
            dropped: The environments that raised in it, and have begun an episode.
        """
        if self.current is None:
            return
        begins = self._ended if self._has_reset_rows else ended
        if begins.any():
            self.current[begins] = 0.0
        if len(dropped):
            self.current[list(dropped)] = 0.0
        self._ended = ended.copy()

    def of_rollout(self, valid: NDArray[np.bool_] | None) -> RecurrentState | None:
        """Returns the states before the first transition of each environment, for a finished rollout.

        Args:
            valid: bool `[T, B]`, as in the rollout; None: all rows are transitions.
        """
        if self._initial is None or valid is None:
            return self._initial
        # What comes before the first transition is a reset row or a dropped one; either way, an episode begins then.
        return np.where(valid[0][:, None], self._initial, np.float32(0.0))
