"""Stores the exploration of actors as two arrays beside a policy's weights, so that actors receive both together."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.heads import OFF_POLICY_HEADS, Q_HEADS
from rollcast.services.errors import ConfigurationError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicyHead, PolicyState

# uint8 []: 1: draw actions from the action space, and ignore the weights.
UNIFORM = "exploration.uniform"
# float32 [n]: the actor in slot i acts at random with rate [i % n].
EPSILONS = "exploration.epsilons"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The exploration of one actor.

    Attributes:
        uniform: True: draw actions uniformly from the action space, to fill a replay buffer.
        epsilon: The rate of random actions with the `q_values` head, in [0, 1].
    """

    uniform: bool = False
    epsilon: float = 0.0


def epsilon_ladder(n: int, *, epsilon: float = 0.4, alpha: float = 7.0) -> NDArray[np.float32]:
    """Returns the exploration rates of n actors, from high to low.

    Horgan et al. 2018, "Distributed Prioritized Experience Replay" (Ape-X), https://arxiv.org/abs/1803.00933,
    section 4.1:

        epsilon_i = epsilon ^ (1 + i / (n - 1) * alpha)

    Args:
        n: The number of actors, at least 1. A single actor gets `epsilon`.
        epsilon: The highest rate, in [0, 1]; 0.4 in the paper.
        alpha: Steepness of the ladder, at least 0; 7 in the paper.

    Returns:
        float32 `[n]`, in decreasing order.

    Raises:
        ConfigurationError: If an argument is out of its range.
    """
    if n < 1 or not 0.0 <= epsilon <= 1.0 or not 0.0 <= alpha < np.inf:
        raise ConfigurationError(
            f"the ladder has n {n}, epsilon {epsilon}, alpha {alpha}; expected n of at least 1, epsilon in "
            "[0, 1], and a finite alpha of at least 0; correct the wrong value"
        )
    exponents = 1.0 + np.arange(n) / max(n - 1, 1) * alpha
    ladder: NDArray[np.float32] = np.power(epsilon, exponents).astype(np.float32)
    return ladder


def without_exploration(state: PolicyState) -> PolicyState:
    """Returns a policy's arrays without the arrays of exploration."""
    return {name: array for name, array in state.items() if name not in (UNIFORM, EPSILONS)}


def read_exploration(state: PolicyState, head: PolicyHead, *, slot: int) -> Exploration:
    """Reads an actor's exploration from a policy's arrays.

    Args:
        state: The policy's arrays. With the default head, `exploration.uniform` is optional.
        head: The policy's head.
        slot: The actor's slot, at least 0; selects the actor's rate.

    Raises:
        ProtocolMismatchError: If an array is missing or not expected, or has a wrong dtype, shape or value.
    """
    uniform, epsilons = state.get(UNIFORM), state.get(EPSILONS)
    if (uniform is None and head in OFF_POLICY_HEADS) or (epsilons is None) is (head in Q_HEADS):
        expected = [UNIFORM, EPSILONS] if head in Q_HEADS else [UNIFORM]
        found = [name for name in (UNIFORM, EPSILONS) if name in state]
        raise ProtocolMismatchError(
            f"a policy with the head {head!r} has {found}; expected {expected}; start learner and actor from the "
            "same version of rollcast"
        )
    if uniform is not None and (uniform.dtype != np.uint8 or uniform.shape != () or int(uniform) > 1):
        raise ProtocolMismatchError(
            f"{UNIFORM} is {uniform.dtype}{list(uniform.shape)} {uniform}; expected uint8[], 0 or 1; publish the "
            "result of TorchPolicy.state_arrays"
        )
    return Exploration(
        uniform=bool(uniform),
        epsilon=0.0 if epsilons is None else float(checked_epsilons(epsilons)[slot % len(epsilons)]),
    )


def checked_epsilons(epsilons: NDArray[np.generic]) -> NDArray[np.float32]:
    """Returns the exploration rates if they are valid.

    Args:
        epsilons: float32 `[n]`, n at least 1, each in [0, 1].

    Raises:
        ProtocolMismatchError: If the dtype, the shape or a rate is wrong.
    """
    if epsilons.dtype != np.float32 or epsilons.ndim != 1 or not len(epsilons):
        raise ProtocolMismatchError(
            f"{EPSILONS} is {epsilons.dtype}{list(epsilons.shape)}; expected float32[n], n at least 1; publish the "
            "result of TorchPolicy.state_arrays"
        )
    rates: NDArray[np.float32] = epsilons.astype(np.float32, copy=False)
    # Written so that NaN fails.
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ProtocolMismatchError(f"{EPSILONS} is {rates.tolist()}; expected rates in [0, 1]; correct them")
    return rates
