"""Exploration as part of a policy's state: two arrays beside the weights, so that it reaches actors as they do."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.heads import OFF_POLICY_HEADS, Q_HEADS
from rollcast.services.errors import ConfigurationError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicyHead, PolicyState

# uint8 []: 1, act at random from the action space, whatever the weights say.
UNIFORM = "exploration.uniform"
# float32 [n]: the actor in slot i acts at random with the rate [i % n].
EPSILONS = "exploration.epsilons"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """How one actor explores.

    Attributes:
        uniform: Whether it acts at random from the action space, to fill a replay buffer.
        epsilon: How often a head of values acts at random, in [0, 1].
    """

    uniform: bool = False
    epsilon: float = 0.0


def epsilon_ladder(n: int, *, epsilon: float = 0.4, alpha: float = 7.0) -> NDArray[np.float32]:
    """The rates of n actors: from one that explores much to one that hardly does.

    Horgan et al. 2018, "Distributed Prioritized Experience Replay" (Ape-X), https://arxiv.org/abs/1803.00933,
    section 4.1:

        epsilon_i = epsilon ^ (1 + i / (n - 1) * alpha)

    Args:
        n: How many, at least 1. One alone gets `epsilon`.
        epsilon: The highest rate, in [0, 1]; 0.4 in the paper.
        alpha: How steep the ladder is, at least 0; 7 in the paper.

    Returns:
        float32 `[n]`, falling.

    Raises:
        ConfigurationError: If an argument is out of its range.
    """
    if n < 1 or not 0.0 <= epsilon <= 1.0 or not 0.0 <= alpha < np.inf:
        raise ConfigurationError(
            f"the ladder has n {n}, epsilon {epsilon}, alpha {alpha}; expected at least 1, [0, 1], and a finite number "
            "of at least 0; correct what is not"
        )
    exponents = 1.0 + np.arange(n) / max(n - 1, 1) * alpha
    ladder: NDArray[np.float32] = np.power(epsilon, exponents).astype(np.float32)
    return ladder


def without_exploration(state: PolicyState) -> PolicyState:
    """Returns the weights: what is left of a policy's arrays without those of exploration."""
    return {name: array for name, array in state.items() if name not in (UNIFORM, EPSILONS)}


def read_exploration(state: PolicyState, head: PolicyHead, *, slot: int) -> Exploration:
    """Takes from a policy's arrays how an actor explores.

    Args:
        state: The policy's arrays. Those of exploration are missing only with the default head, which may have
            `exploration.uniform` and needs not.
        head: The policy's head.
        slot: The actor's, at least 0: which rate is its own.

    Returns:
        How it explores.

    Raises:
        ProtocolMismatchError: If an array is missing, is one too many, or has a wrong dtype, shape or value.
    """
    uniform, epsilons = state.get(UNIFORM), state.get(EPSILONS)
    if (uniform is None and head in OFF_POLICY_HEADS) or (epsilons is None) is (head in Q_HEADS):
        expected = [UNIFORM, EPSILONS] if head in Q_HEADS else [UNIFORM]
        found = [name for name in (UNIFORM, EPSILONS) if name in state]
        raise ProtocolMismatchError(
            f"a policy with the head {head!r} came with {found}; expected {expected}; start learner and actor from the "
            "same version of rollcast"
        )
    if uniform is not None and (uniform.dtype != np.uint8 or uniform.shape != () or int(uniform) > 1):
        raise ProtocolMismatchError(
            f"{UNIFORM} is {uniform.dtype}{list(uniform.shape)} {uniform}; expected uint8[], 0 or 1; cast what "
            "TorchPolicy.state_arrays returns"
        )
    return Exploration(
        uniform=bool(uniform),
        epsilon=0.0 if epsilons is None else float(checked_epsilons(epsilons)[slot % len(epsilons)]),
    )


def checked_epsilons(epsilons: NDArray[np.generic]) -> NDArray[np.float32]:
    """Checks rates.

    Args:
        epsilons: float32 `[n]`, n at least 1, each in [0, 1].

    Returns:
        The same.

    Raises:
        ProtocolMismatchError: If they are not as they should be.
    """
    if epsilons.dtype != np.float32 or epsilons.ndim != 1 or not len(epsilons):
        raise ProtocolMismatchError(
            f"{EPSILONS} is {epsilons.dtype}{list(epsilons.shape)}; expected float32[n], n at least 1; cast what "
            "TorchPolicy.state_arrays returns"
        )
    rates: NDArray[np.float32] = epsilons.astype(np.float32, copy=False)
    # Written so that NaN does not pass.
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ProtocolMismatchError(f"{EPSILONS} is {rates.tolist()}; expected rates in [0, 1]; correct them")
    return rates
