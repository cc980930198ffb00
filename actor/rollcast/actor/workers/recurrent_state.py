"""Carries recurrent states and frames between steps, and clears them at the beginning of episodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.services.spaces.spaces import Observation


class CarriedState:
    """The recurrent states and the last frames of a vector's environments.

    With NEXT_STEP, the row after the end of an episode has its final observation and is not a transition. In this row
    the old state continues, so that a learner can compute the observation's value. The next row starts from an empty
    state. With SAME_STEP, the row after the end begins an episode.

    Attributes:
        state: float32 `[B, S]`, for the next observations; `Policy.act` changes it in place. None: not recurrent.
        is_empty: True: the policy has neither a recurrent state nor a frame stack.
    """

    def __init__(self, policy: Policy, n_envs: int, *, has_reset_rows: bool) -> None:
        """Begins with empty states.

        Args:
            policy: The policy that acts.
            n_envs: B.
            has_reset_rows: True: the row after the end of an episode is not a transition.
        """
        self.state = policy.initial_state(n_envs)
        self._stacks = policy.frame_stacks(n_envs)
        self.is_empty = self.state is None and self._stacks is None
        self._has_reset_rows = has_reset_rows
        self._initial_state: RecurrentState | None = None
        # The frames before row 0; None until its observation has been seen.
        self._previous: Mapping[str, NDArray[Any]] | None = None
        self._ended: NDArray[np.bool_] = np.zeros(n_envs, np.bool_)

    def begin_rollout(self) -> None:
        """Records the states at the beginning of a rollout."""
        if self.state is not None:
            self._initial_state = self.state.copy()
        self._previous = None

    def see(self, observation: Observation) -> Observation:
        """Returns the policy's input for a row: the observations, or frame stacks that end with these observations.

        Args:
            observation: `[B, ...]` for every leaf.

        Returns:
            `[B, ...]` for every leaf; with a frame stack `[B, K, ...]`, which the next call changes.
        """
        if self._stacks is None:
            return observation
        stacks = self._stacks.push(observation)
        if self._previous is None:
            self._previous = self._stacks.previous()
        return stacks

    def end_step(self, ended: NDArray[np.bool_], dropped: Sequence[int]) -> None:
        """Clears the states of environments whose next row begins an episode.

        Args:
            ended: bool `[B]`. True: the episode ended in the step.
            dropped: The environments that raised in the step, and have begun an episode.
        """
        begins = self._ended if self._has_reset_rows else ended
        if begins.any():
            self._forget(begins)
        if len(dropped):
            self._forget(list(dropped))
        self._ended = ended.copy()

    def initial_state(self, valid: NDArray[np.bool_] | None) -> RecurrentState | None:
        """Returns the states before the first transition of each environment, for a finished rollout.

        Args:
            valid: bool `[T, B]`, as in the rollout; None: all rows are transitions.
        """
        if self._initial_state is None or valid is None:
            return self._initial_state
        # A reset row or a dropped row comes before the first transition. In both cases, an episode begins there.
        return np.where(valid[0][:, None], self._initial_state, np.float32(0.0))

    def previous_observation(self, observation: Observation, valid: NDArray[np.bool_] | None) -> Observation | None:
        """Returns the frames before the first transition of each environment, for a finished rollout.

        Args:
            observation: `[T, B, ...]` for every leaf, from the rollout.
            valid: bool `[T, B]`, as in the rollout; None: all rows are transitions.

        Returns:
            `[B, K - 1, ...]` for every leaf; None if the policy takes single frames.
        """
        if self._previous is not None and valid is not None:
            # The first transition begins an episode, so the frames before it are copies of its own frame.
            late = np.flatnonzero(~valid[0])
            first = valid[:, late].argmax(axis=0)
            for path, frames in self._previous.items():
                frames[late] = observation[path][first, late][:, None]
        return self._previous

    def _forget(self, rows: NDArray[np.bool_] | list[int]) -> None:
        if self.state is not None:
            self.state[rows] = 0.0
        if self._stacks is not None:
            self._stacks.begin(rows)
