"""The base of the algorithms that learn a policy and a critic from trajectories."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.actor_critic_settings import ActorCriticSettings
from rollcast.learner.algorithms.critics import ValueCritic
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.flat_parameters import FlatParameters
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.schedules import make_schedule
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

OwnSettings = TypeVar("OwnSettings", bound=ActorCriticSettings)


class LossTerms(NamedTuple):
    """The report of one step of the optimiser; each quantity is 0-dim, without graph."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    policy_grad_norm: Tensor
    critic_grad_norm: Tensor


class ActorCritic(OnePolicy[OwnSettings]):
    """Base of an algorithm that follows the policy's gradient, with a critic's values as the baseline.

    Policy and critic share no parameter, so that only the policy is sent to actors. Their parameters are one vector,
    with one optimiser.
    """

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: OwnSettings, seed: int) -> None:
        self._action_space = spaces[self._substep_key].action
        self._policy = TorchPolicy(spaces, spec).to(self._device)
        self._critic = ValueCritic(spaces, spec, substep_key=self._substep_key).to(self._device)
        self._parameters = FlatParameters({"policy": self._policy, "critic": self._critic})
        self._optimizer = self._make_optimizer(settings, self._parameters.vector)
        self._learning_rate = make_schedule(settings.learning_rate_schedule, settings.learning_rate, 0.0)
        end = settings.entropy_cost if settings.entropy_cost_end is None else settings.entropy_cost_end
        self._entropy_cost = make_schedule("linear", settings.entropy_cost, end)
        self._watch = DivergenceWatch(
            ("policy loss", "value loss", "entropy", "policy's gradient norm", "critic's gradient norm"),
            device=self._device,
            advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
            f"({settings.max_grad_norm:g}), or scale rewards and observations down.",
        )

    def _make_optimizer(self, settings: OwnSettings, vector: torch.nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [vector],
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.optimizer_epsilon,
            fused=True,  # one kernel instead of ten, on the CPU and on CUDA
        )

    def _follow_schedules(self, progress: float) -> dict[str, float]:
        """Sets the optimiser's learning rate; returns the scheduled quantities by the names of their metrics."""
        learning_rate = self._learning_rate(progress)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        return {"learning_rate": learning_rate, "entropy_cost": self._entropy_cost(progress)}

    def _descend(self, total: Tensor, *, policy: Tensor, value: Tensor, entropy: Tensor) -> LossTerms:
        """Makes a step of the optimiser down the total loss.

        Args:
            total: The loss, with its graph.
            policy: The policy's term of it, for the report.
            value: The critic's term, for the report.
            entropy: The mean entropy in nats, for the report.

        Raises:
            RollcastError: If training diverged; the parameters are as before.
        """
        self._parameters.backward([total])
        with torch.no_grad():
            policy_norm = self._parameters.clip_gradient("policy", self._settings.max_grad_norm)
            critic_norm = self._parameters.clip_gradient("critic", self._settings.max_grad_norm)
        terms = LossTerms(policy.detach(), value.detach(), entropy.detach(), policy_norm, critic_norm)
        self._watch.observe(*terms)
        self._optimizer.step()
        return terms

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return {"policy": self._policy, "critic": self._critic, "optimizer": self._optimizer}
