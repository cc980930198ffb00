"""Applies action masks: the leaf `action_mask` of an observation marks the actions that the environment allows.

The convention is PettingZoo's: the observation space is a Dict with a member `action_mask` beside the observation. The
mask has a 1 for each allowed action. Actors send the mask as a leaf of each observation.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from rollcast.services.errors import ActorFailedError, InvalidSpaceError
from rollcast.services.spaces.spaces import Observation, SubstepSpaces, describe_space, space_leaves

ACTION_MASK: Final = "action_mask"
# Replaces the logit or value of a forbidden action. So far below all others that its probability is exactly 0; finite,
# so that 0 times it is 0, and entropies and losses stay finite.
FORBIDDEN: Final = -1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMask:
    """The layout of an action mask, and its effect on parameters.

    A mask that allows no action, as at the end of a game, counts as a mask that allows all actions. No action follows,
    and computed values stay finite.

    Attributes:
        sizes: The number of actions of each element of the action space. A Discrete space has one element.
    """

    sizes: tuple[int, ...]

    @property
    def n_actions(self) -> int:
        """Length of a mask."""
        return sum(self.sizes)

    def allowed(self, observation: Observation) -> NDArray[np.bool_]:
        """Returns the allowed actions.

        Args:
            observation: `[..., n]` for the mask; other leaves are ignored.

        Returns:
            bool `[..., n]`, a fresh array with at least one True for each element of the action space.
        """
        allowed: NDArray[np.bool_] = observation[ACTION_MASK] != 0
        for part in self._elements(allowed):
            np.logical_or(part, ~part.any(axis=-1, keepdims=True), out=part)
        return allowed

    def forbid(self, parameters: NDArray[np.float32], observation: Observation) -> None:
        """Overwrites the parameters of forbidden actions with `FORBIDDEN`.

        Args:
            parameters: float32 `[..., P]`; the last n are logits or values of the actions, or advantages.
            observation: `[..., n]` for the mask.
        """
        np.copyto(parameters[..., -self.n_actions :], FORBIDDEN, where=~self.allowed(observation))

    def allows_no_action(self, observation: Observation) -> list[NDArray[np.bool_]]:
        """Returns the positions at which a mask allows no action.

        Args:
            observation: `[..., n]` for the mask.

        Returns:
            bool `[...]` for each element of the action space; True: no allowed action.
        """
        return [np.logical_not(part.any(axis=-1)) for part in self._elements(observation[ACTION_MASK] != 0)]

    def check_transitions(self, observation: Observation, valid: NDArray[np.bool_] | None) -> None:
        """Checks that every transition of a rollout had an allowed action.

        Args:
            observation: `[T, B, n]` for the mask.
            valid: bool `[T, B]`, True for transitions; None: all rows are transitions.

        Raises:
            ActorFailedError: If a mask allows no action. The message has the environment and the step.
        """
        for element, allows_no_action in enumerate(self.allows_no_action(observation)):
            empty = allows_no_action if valid is None else allows_no_action & valid
            if empty.any():
                t, b = (int(index) for index in np.argwhere(empty)[0])
                raise ActorFailedError(
                    f"the {ACTION_MASK!r} of environment {b} allows no action for element {element} in step {t} of the "
                    "rollout; expected at least one allowed action until the episode has ended; end the episode in the "
                    "step before, or allow an action without an effect"
                )

    def _elements(self, values: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Returns views, one for each element of the action space."""
        ends = itertools.accumulate(self.sizes)
        return [values[..., end - size : end] for size, end in zip(self.sizes, ends, strict=True)]


def action_mask_of(spaces: SubstepSpaces) -> ActionMask | None:
    """Returns the action mask of a substep; None if the substep's observations have no mask.

    Args:
        spaces: The spaces of one substep.

    Raises:
        InvalidSpaceError: If a leaf named `action_mask` is outside the topmost Dict, or is its only member. Or if it
            has a wrong dtype, shape or range, or the actions cannot be masked.
    """
    leaves = space_leaves(spaces.observation)
    paths = [path for path in leaves if ACTION_MASK in path.split("/")]
    if not paths:
        return None
    if paths != [ACTION_MASK] or len(leaves) == 1:
        raise InvalidSpaceError(
            f"the observation space has {paths} among the leaves {list(leaves)}; expected {ACTION_MASK!r} as a member "
            "of the topmost Dict, beside the observation; move it there, or give it another name if it is not a mask"
        )
    leaf, sizes = leaves[ACTION_MASK], action_mask_sizes(spaces.action)
    if leaf.shape != (sum(sizes),) or not _is_binary(leaf):
        raise InvalidSpaceError(
            f"{ACTION_MASK!r} of the observation space is {describe_space(leaf)}; expected zeros and ones, "
            f"Box(0, 1, ({sum(sizes)},), int8) or MultiBinary({sum(sizes)}), one for each action of "
            f"{describe_space(spaces.action)}; give it that space, or another name if it is not a mask"
        )
    return ActionMask(sizes=sizes)


def action_mask_sizes(action_space: Space[Any]) -> tuple[int, ...]:
    """Returns the number of actions of each element of an action space: the layout of a mask.

    Args:
        action_space: Discrete or MultiDiscrete.

    Returns:
        A number for each element; one number for Discrete.

    Raises:
        InvalidSpaceError: If the space is of another kind.
    """
    if isinstance(action_space, Discrete):
        return (int(action_space.n),)
    if isinstance(action_space, MultiDiscrete):
        return tuple(int(size) for size in action_space.nvec.ravel())
    raise InvalidSpaceError(
        f"the action space is {describe_space(action_space)} and there is an {ACTION_MASK!r}; expected a mask only "
        "with Discrete or MultiDiscrete actions; remove the mask from the observation, or make the actions discrete"
    )


def is_allowed(parameters: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns the allowed actions, read from parameters `[..., n]` that `ActionMask.forbid` has changed."""
    allowed: NDArray[np.bool_] = parameters > 0.5 * FORBIDDEN
    return allowed


def _is_binary(leaf: Space[Any]) -> bool:
    if isinstance(leaf, MultiBinary):
        return True
    is_integer = isinstance(leaf, Box) and leaf.dtype is not None and leaf.dtype.kind in "biu"
    return is_integer and bool((leaf.low >= 0).all() and (leaf.high <= 1).all())  # type: ignore[attr-defined]  # a Box
