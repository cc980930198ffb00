"""IMPALA: an actor-critic whose V-trace targets correct for rollouts of a slightly older policy.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
https://arxiv.org/abs/1802.01561.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rollcast.learner.algorithms.actor_critic_networks import (
    CRITIC_SETTINGS,
    STEP_METRICS,
    ActorCriticNetworks,
    watch_of,
)
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.descent import Descent, RMSprop, adam
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.reward_scaling import RewardScaling
from rollcast.learner.algorithms.trajectories import (
    columns_of,
    explained_variance,
    log_importance,
    n_learnt_rows,
    normalized,
    shares_of_steps,
    values_and_next_values,
)
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


class Impala(OnePolicy[ImpalaSettings]):
    """IMPALA: a policy gradient with V-trace advantages, a critic with V-trace targets, and an entropy bonus.

    An update minimises `impala_loss`; `vtrace` computes the targets and advantages.

    `Algorithm` documents which thread may call which method.
    """

    name = "impala"
    learns_recurrent_policies = True
    learns_frame_stacks = True
    critic_settings = CRITIC_SETTINGS

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: ImpalaSettings, seed: int) -> None:
        key, device = self._substep_key, self._device
        self._networks = ActorCriticNetworks(spaces, spec, settings, substep_key=key, device=device)
        self._policy = self._networks.policy
        self._rewards = RewardScaling(settings, device)
        self._descent = Descent(self._networks.by_name, self._optimizer, max_grad_norm=settings.max_grad_norm)
        self._networks.pair(self._descent.parameters)
        self._watch = watch_of(settings, device)
        self._schedules = settings.schedules()
        self._parts = {**self._networks.by_name, "optimizer": self._descent, **self._rewards.parts}

    def _optimizer(self, vector: nn.Parameter) -> Optimizer:
        settings = self._settings
        learning_rate, epsilon = settings.learning_rate, settings.optimizer_epsilon
        if settings.optimizer == "adam":
            return adam(learning_rate, beta1=settings.adam_beta1, beta2=settings.adam_beta2, epsilon=epsilon)(vector)
        decay, momentum = settings.rmsprop_decay, settings.rmsprop_momentum
        return RMSprop([vector], lr=learning_rate, alpha=decay, eps=epsilon, momentum=momentum)

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch; see `Algorithm.update`."""
        now = {name: value_at(progress) for name, value_at in self._schedules.items()}
        return {**self._run(self._learn, batch, {**now, "n_env_steps": batch.n_env_steps}), **now}

    def _learn(self, batch: Batch, now: Numbers) -> Outputs:
        """Makes the optimiser steps for a batch `[T, B, ...]`, on the device; `now` has the values of schedules."""
        settings, columns, n_env_steps = self._settings, columns_of(batch, self._substep_key), now["n_env_steps"]
        forward = self._networks.forward(batch, columns, self._networks.observations(batch, columns))
        value = forward.values[: batch.reward.numel()]
        with torch.no_grad():
            log_rho_t = log_importance(batch, forward.log_prob.detach(), columns.log_prob)
            v_t, v_tp1 = values_and_next_values(batch, forward.values.detach())
            returns = vtrace(
                log_rho_t=log_rho_t,
                r_t=self._rewards(batch, n_env_steps, self._reduction),
                discount_t=settings.discount * ~batch.terminated,
                # No trace runs from the next episode back into the one that ended.
                continues_t=~(batch.terminated | batch.truncated),
                v_t=v_t,
                v_tp1=v_tp1,
                clip_rho=settings.clip_rho,
                clip_c=settings.clip_c,
                clip_pg_rho=settings.clip_pg_rho,
                lambda_=settings.trace_lambda,
                overridden_t=batch.overridden,
            )
            count = n_learnt_rows(batch)
            weight, target = shares_of_steps(batch, n_env_steps).view(-1), returns.vs.view(-1)
            advantage = returns.pg_advantage.view(-1)
            if settings.normalize_advantages:
                advantage = normalized(advantage, weight, count=count, reduction=self._reduction)
        loss = impala_loss(
            log_prob=forward.log_prob,
            entropy=forward.entropy,
            value=value,
            target=target,
            advantage=advantage,
            weight=weight,
            value_cost=settings.value_cost,
            entropy_cost=now["entropy_cost"],
        )
        terms, norms = self._descent.backward(
            [forward.log_prob, forward.entropy, value],
            [loss.policy, loss.value, loss.entropy],
            output_gradients=loss.gradients,
            write_gradient=forward.write_gradient,
            count=count,
            reduction=self._reduction,
        )
        self._watch.observe(*terms, *norms)
        self._descent.step(now["learning_rate"])
        return {
            **dict(zip(STEP_METRICS, (*terms, *norms), strict=True)),
            "reward_factor": self._rewards.factor(),
            "mean_rho": torch.dot(weight, log_rho_t.exp().view(-1)),
            "explained_variance": explained_variance(value.detach(), target, weight),
        }

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        saved, own = values.get("settings", {}).get("optimizer"), self._settings.optimizer
        if saved != own:
            raise ConfigurationError(
                f"{source} was written by 'impala' with the optimizer {saved!r}; expected 'impala' with {own!r}. "
                "Resume with the algorithm and the optimizer of that run."
            )


class ImpalaLoss(NamedTuple):
    """The three terms of a batch's loss, each 0-dim, and the gradient of the loss.

    The loss is policy + value_cost * value - entropy_cost * entropy.

    Attributes:
        policy: The policy gradient's term.
        value: Half the critic's squared error.
        entropy: The policy's mean entropy in nats.
        gradients: The gradients of the loss with respect to `log_prob`, `entropy` and `value`, each float32 `[N]`.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def impala_loss(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    target: Tensor,
    advantage: Tensor,
    weight: Tensor,
    value_cost: float,
    entropy_cost: Tensor | float,
) -> ImpalaLoss:
    """Computes the loss of N = T * B steps: section 4.2 of the paper.

    `vtrace` computes the targets v and the advantages, which are constants here:

        sum_t weight_t [ -advantage_t log pi(a_t | x_t)
                         + value_cost (V(x_t) - v_t)^2 / 2
                         - entropy_cost H(pi(. | x_t)) ]

    Section 4.2 of the paper gives the gradient of each of the three terms. No graph is made.

    Args:
        log_prob: float32 `[N]`, log pi(a_t | x_t) of the policy in training.
        entropy: float32 `[N]`, H(pi(. | x_t)) in nats.
        value: float32 `[N]`, V(x_t) of the critic in training.
        target: float32 `[N]`, v_t without gradient.
        advantage: float32 `[N]` without gradient; it includes the truncated importance weight.
        weight: float32 `[N]`, 1 / (number of valid steps) where a step is valid, 0 elsewhere.
        value_cost: Weight of the critic's term.
        entropy_cost: Weight of the entropy bonus.
    """
    error = value - target
    weighted_error, of_log_prob = weight * error, weight * -advantage
    return ImpalaLoss(
        policy=torch.dot(of_log_prob, log_prob),
        value=0.5 * torch.dot(weighted_error, error),
        entropy=torch.dot(weight, entropy),
        gradients=(of_log_prob, weight * -entropy_cost, weighted_error * value_cost),
    )
