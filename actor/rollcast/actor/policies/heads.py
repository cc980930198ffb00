"""What a network's outputs mean: the distribution that a policy's head and an action space make."""

from rollcast.actor.policies.action_masks import action_mask_of
from rollcast.actor.policies.distributions import ActionDistribution, action_distribution
from rollcast.actor.policies.q_values import EpsilonGreedy, MaskedEpsilonGreedy
from rollcast.actor.policies.squashed_gaussian import SquashedGaussian
from rollcast.services.policies.policies import PolicyHead
from rollcast.services.spaces.spaces import SubstepSpaces

# Their policies always carry what exploration.py describes; others may.
OFF_POLICY_HEADS: tuple[PolicyHead, ...] = ("squashed_gaussian", "q_values", "dueling_q_values")
Q_HEADS: tuple[PolicyHead, ...] = ("q_values", "dueling_q_values")


def head_distribution(spaces: SubstepSpaces, head: PolicyHead, *, epsilon: float = 0.0) -> ActionDistribution:
    """The distribution over a substep's actions.

    Args:
        spaces: The substep's. Its actions: any that are supported for `"default"`, a bounded Box for
            `"squashed_gaussian"`, Discrete for `"q_values"` and `"dueling_q_values"`.
        head: As `rollcast.services.policies.policies.PolicySpec` describes it.
        epsilon: How often the heads of values act at random, in [0, 1]; the others ignore it.

    Returns:
        The distribution.

    Raises:
        InvalidSpaceError: If the head cannot act in the space, or the observation's action mask is none.
    """
    mask = action_mask_of(spaces)
    if head == "default":
        return action_distribution(spaces.action)
    if head == "squashed_gaussian":
        return SquashedGaussian(spaces.action)
    kind = EpsilonGreedy if mask is None else MaskedEpsilonGreedy
    return kind(spaces.action, dueling=head == "dueling_q_values", epsilon=epsilon)
