"""What a network's outputs mean: the distribution that a policy's head and an action space make."""

from typing import Any

from gymnasium import Space

from actor.policies.distributions import ActionDistribution, action_distribution
from actor.policies.q_values import EpsilonGreedy
from actor.policies.squashed_gaussian import SquashedGaussian
from services.policies import PolicyHead

# Their policies always carry what exploration.py describes; others may.
OFF_POLICY_HEADS: tuple[PolicyHead, ...] = ("squashed_gaussian", "q_values", "dueling_q_values")
Q_HEADS: tuple[PolicyHead, ...] = ("q_values", "dueling_q_values")


def head_distribution(action_space: Space[Any], head: PolicyHead, *, epsilon: float = 0.0) -> ActionDistribution:
    """The distribution over a space's actions.

    Args:
        action_space: Any that is supported for `"default"`, a bounded Box for `"squashed_gaussian"`, Discrete for
            `"q_values"` and `"dueling_q_values"`.
        head: As `services.policies.PolicySpec` describes it.
        epsilon: How often the heads of values act at random, in [0, 1]; the others ignore it.

    Returns:
        The distribution.

    Raises:
        InvalidSpaceError: If the head cannot act in the space.
    """
    if head == "default":
        return action_distribution(action_space)
    if head == "squashed_gaussian":
        return SquashedGaussian(action_space)
    return EpsilonGreedy(action_space, dueling=head == "dueling_q_values", epsilon=epsilon)
