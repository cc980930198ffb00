"""The parts of soft actor-critic that depend on the action space: continuous or discrete, behind one interface."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.policies.action_masks import ActionMask, action_mask_of
from rollcast.actor.policies.torch_action_masks import allowed_actions
from rollcast.actor.policies.torch_squashed_gaussian import TorchSquashedGaussian
from rollcast.learner.algorithms.critics import CriticEnsemble
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyHead
from rollcast.services.spaces.spaces import SubstepSpaces

Observation = Mapping[str, Tensor]

# Combines the values of E critics: float32 [E, ...] -> [...].
Combine = Callable[[Tensor], Tensor]


def smallest(values: Tensor) -> Tensor:
    """Returns the smallest of the critics' values, `[E, ...]` -> `[...]`, each with its graph."""
    return values.amin(dim=0)


def mean(values: Tensor) -> Tensor:
    """Returns the mean of the critics' values, `[E, ...]` -> `[...]`."""
    return values.mean(dim=0)


class PolicyImprovement(NamedTuple):
    """The policy's loss for each of N observations, with its gradient.

    Attributes:
        outputs_gradient: float32 `[N, P]`, the gradient of the loss with respect to the policy network's outputs.
        loss: float32 `[N]`.
        entropy: float32 `[N]`, the policy's entropy: an estimate for continuous actions, exact for discrete actions.
    """

    outputs_gradient: Tensor
    loss: Tensor
    entropy: Tensor


class SoftActions(ABC):
    """The parts of an update that depend on the action space.

    The only state is the generator, which only the algorithm's thread uses.

    Attributes:
        head: The meaning of the policy's outputs.
    """

    head: PolicyHead

    @abstractmethod
    def target_entropy(self, observation: Observation) -> Tensor | float:
        """Returns the default target entropy in nats: float32 `[N]`, or one number for all observations."""

    @abstractmethod
    def values(self, critics: CriticEnsemble, observation: Observation, action: Tensor) -> Tensor:
        """Returns all critics' values of taken actions: float32 `[E, N]`, with its graph."""

    @abstractmethod
    def soft_value(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        members: Sequence[int] | None,
    ) -> Tensor:
        """Returns E_a[min_i Q_i(s, a) - temperature log pi(a | s)], float32 `[N]`, without gradient.

        Args:
            outputs: float32 `[N, P]`, the policy network's outputs.
            critics: The critics.
            observation: `[N, ...]` for every leaf.
            temperature: 0-dim.
            members: The critics i to use; None: all.
        """

    @abstractmethod
    def improve(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        combine: Combine,
    ) -> PolicyImprovement:
        """Returns the loss E_a[temperature log pi(a | s) - Q(s, a)] of each observation, and its gradient.

        Args:
            outputs: float32 `[N, P]`, the policy network's outputs; their graph is not used.
            critics: The critics; their gradients are unchanged.
            observation: `[N, ...]` for every leaf.
            temperature: 0-dim.
            combine: Combines the critics' values into Q.
        """


def soft_actions(spaces: SubstepSpaces, generator: torch.Generator, *, entropy_ratio: float) -> SoftActions:
    """Makes the `SoftActions` for an action space.

    Args:
        spaces: The spaces of the substep.
        generator: The source of noise, on the algorithm's device.
        entropy_ratio: For discrete actions, the target entropy divided by the entropy of the uniform policy.

    Raises:
        ConfigurationError: If the action space is neither Box nor Discrete.
        InvalidSpaceError: If a Box has bounds that are not finite, or the observation's leaf `action_mask` is not a
            mask for the actions.
    """
    mask = action_mask_of(spaces)
    if isinstance(spaces.action, Box):
        return _ContinuousActions(spaces.action, generator)
    if isinstance(spaces.action, Discrete):
        return _DiscreteActions(spaces.action, mask, entropy_ratio=entropy_ratio)
    raise ConfigurationError(
        f"The action space is {spaces.action}; SAC supports Box and Discrete. Wrap the environment, or use IMPALA."
    )


class _ContinuousActions(SoftActions):
    """A tanh-squashed Gaussian; expectations are estimated with one reparameterised sample.

    Critics see the executed actions: rollouts of another policy may have actions outside the Box, which were clipped
    for the environment.

    Haarnoja et al. 2018b, "Soft Actor-Critic Algorithms and Applications", https://arxiv.org/abs/1812.05905. Actions
    and densities refer to the Box scaled to [-1, 1]^D, as in the authors' environments.
    """

    head: PolicyHead = "squashed_gaussian"

    def __init__(self, space: Box, generator: torch.Generator) -> None:
        self._generator = generator
        self._distribution = TorchSquashedGaussian(space, device=generator.device)
        bounds = ExecutedActions(space).bounds
        assert bounds is not None, "TorchSquashedGaussian refuses a Box without bounds"
        self._low, self._high = (torch.from_numpy(bound).to(generator.device) for bound in bounds)
        self._target_entropy = -float(math.prod(space.shape))

    def target_entropy(self, observation: Observation) -> Tensor | float:
        return self._target_entropy

    def values(self, critics: CriticEnsemble, observation: Observation, action: Tensor) -> Tensor:
        executed = torch.clamp(action, self._low, self._high)
        return critics(observation, self._distribution.normalise(executed))  # type: ignore[no-any-return]

    @torch.no_grad()
    def soft_value(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        members: Sequence[int] | None,
    ) -> Tensor:
        sample = self._distribution.sample(outputs, self._noise(outputs))
        return smallest(critics(observation, sample.action, members=members)) - temperature * sample.log_prob

    def improve(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        combine: Combine,
    ) -> PolicyImprovement:
        sample = self._distribution.sample(outputs.detach(), self._noise(outputs))
        action = sample.action.requires_grad_()
        with critics.frozen():
            value = combine(critics(observation, action))
            (action_gradient,) = torch.autograd.grad(value.sum(), action)
        with torch.no_grad():
            outputs_gradient = self._distribution.parameters_gradient(
                sample._replace(action=action.detach()), -action_gradient, temperature
            )
            loss = temperature * sample.log_prob - value
        return PolicyImprovement(outputs_gradient, loss, -sample.log_prob)

    def _noise(self, outputs: Tensor) -> Tensor:
        shape = (outputs.shape[0], outputs.shape[1] // 2)
        return torch.randn(shape, generator=self._generator, device=outputs.device)


class _DiscreteActions(SoftActions):
    """A categorical distribution; expectations are sums over all actions. Forbidden actions have probability 0.

    Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", https://arxiv.org/abs/1910.07207. The target
    entropy is a fraction of the entropy of the uniform policy; a mask limits it to the allowed actions.
    """

    head: PolicyHead = "default"

    def __init__(self, space: Discrete, mask: ActionMask | None, *, entropy_ratio: float) -> None:
        self._start = int(space.start)
        self._mask = mask
        self._entropy_ratio = entropy_ratio
        self._target_entropy = entropy_ratio * math.log(int(space.n))

    def target_entropy(self, observation: Observation) -> Tensor | float:
        if self._mask is None:
            return self._target_entropy
        return self._entropy_ratio * allowed_actions(self._mask, observation).sum(dim=1).log()

    def values(self, critics: CriticEnsemble, observation: Observation, action: Tensor) -> Tensor:
        column = (action.to(torch.int64) - self._start)[:, None]
        values: Tensor = critics(observation)
        return values.gather(2, column.expand(len(values), -1, 1)).squeeze(2)

    @torch.no_grad()
    def soft_value(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        members: Sequence[int] | None,
    ) -> Tensor:
        log_p = F.log_softmax(outputs, dim=1)
        values = smallest(critics(observation, members=members))
        return (log_p.exp() * (values - temperature * log_p)).sum(dim=1)

    @torch.no_grad()
    def improve(
        self,
        outputs: Tensor,
        critics: CriticEnsemble,
        observation: Observation,
        temperature: Tensor,
        combine: Combine,
    ) -> PolicyImprovement:
        log_p = F.log_softmax(outputs, dim=1)
        p = log_p.exp()
        regret = temperature * log_p - combine(critics(observation))
        loss = (p * regret).sum(dim=1)
        # d/d logit_b sum_a p_a (temperature log p_a - q_a) = p_b (regret_b - loss); the other terms cancel
        return PolicyImprovement(p * (regret - loss[:, None]), loss, -(p * log_p).sum(dim=1))
