"""Chooses the distribution over actions from a policy's head and the action space."""

from rollcast.actor.policies.action_masks import action_mask_of
from rollcast.actor.policies.distributions import ActionDistribution, action_distribution
from rollcast.actor.policies.q_values import EpsilonGreedy, MaskedEpsilonGreedy
from rollcast.actor.policies.squashed_gaussian import SquashedGaussian
from rollcast.services.policies.policies import PolicyHead
from rollcast.services.spaces.spaces import SubstepSpaces

# Policies with these heads always have the arrays of exploration. With the default head, these arrays are optional.
OFF_POLICY_HEADS: tuple[PolicyHead, ...] = ("squashed_gaussian", "q_values", "dueling_q_values")
Q_HEADS: tuple[PolicyHead, ...] = ("q_values", "dueling_q_values")


def head_distribution(spaces: SubstepSpaces, head: PolicyHead, *, epsilon: float = 0.0) -> ActionDistribution:
    """Returns the distribution over a substep's actions.

    Args:
        spaces: The substep's spaces. Actions may be of any supported kind for `"default"`, a bounded Box for
            `"squashed_gaussian"`, Discrete for `"q_values"` and `"dueling_q_values"`.
        head: A head of `rollcast.services.policies.policies.PolicySpec`.
        epsilon: Rate of random actions with a head of Q-values, in [0, 1]; other heads ignore it.

    Raises:
        InvalidSpaceError: If the head cannot act in the space, or the observation's action mask has a wrong space.
    """
    mask = action_mask_of(spaces)
    if head == "default":
        return action_distribution(spaces.action)
    if head == "squashed_gaussian":
        return SquashedGaussian(spaces.action)
    kind = EpsilonGreedy if mask is None else MaskedEpsilonGreedy
    return kind(spaces.action, dueling=head == "dueling_q_values", epsilon=epsilon)
