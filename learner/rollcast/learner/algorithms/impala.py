"""IMPALA: an actor-critic whose V-trace targets correct for rollouts of a policy that is some updates old.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
https://arxiv.org/abs/1802.01561.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollcast.learner.algorithms.actor_critic import ActorCritic
from rollcast.learner.algorithms.descent import MakeOptimizer
from rollcast.learner.algorithms.impala_loss import impala_loss
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.one_substep import columns_of
from rollcast.learner.algorithms.optimizers import RMSprop
from rollcast.learner.algorithms.trajectories import (
    explained_variance,
    normalized,
    shares_of_steps,
    values_and_next_values,
)
from rollcast.learner.algorithms.vtrace import VTraceReturns, vtrace
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.errors import ConfigurationError


class Impala(ActorCritic[ImpalaSettings]):
    """IMPALA: a policy gradient with V-trace advantages, a critic with V-trace targets, and an entropy bonus.

    `impala_loss` is what an update minimises; `vtrace` computes its targets and advantages.

    `Algorithm` says which thread may call which method.
    """

    name = "impala"

    def _optimizer(self, settings: ImpalaSettings) -> MakeOptimizer:
        if settings.optimizer == "adam":
            return super()._optimizer(settings)
        return lambda vector: RMSprop(
            [vector],
            lr=settings.learning_rate,
            alpha=settings.rmsprop_decay,
            eps=settings.optimizer_epsilon,
            momentum=settings.rmsprop_momentum,
        )

    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        columns, n_env_steps = columns_of(batch, self._substep_key), numbers["n_env_steps"]
        forward = self._forward(batch, columns)
        value = forward.values[: batch.reward.numel()]
        with torch.no_grad():
            log_rho_t = (forward.log_prob.detach().view_as(batch.reward) - columns.log_prob).mul_(batch.valid)
            returns = self._returns(batch, log_rho_t, forward.values.detach(), n_env_steps)
            weight, target = shares_of_steps(batch, n_env_steps).view(-1), returns.vs.view(-1)
            advantage = returns.pg_advantage.view(-1)
            if self._settings.normalize_advantages:
                advantage = normalized(advantage, weight, count=batch.n_env_steps, reduction=self._reduction)
        loss = impala_loss(
            log_prob=forward.log_prob,
            entropy=forward.entropy,
            value=value,
            target=target,
            advantage=advantage,
            weight=weight,
            value_cost=self._settings.value_cost,
            entropy_cost=numbers["entropy_cost"],
        )
        terms, _ = self._descend(
            loss.total,
            policy=loss.policy,
            value=loss.value,
            entropy=loss.entropy,
            count=batch.n_env_steps,
            learning_rate=numbers["learning_rate"],
        )
        return {
            **terms._asdict(),
            "reward_factor": self._reward_factor(),
            "mean_rho": torch.dot(weight, log_rho_t.exp_().view(-1)),
            "explained_variance": explained_variance(value.detach(), target, weight),
        }

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        saved, own = values.get("settings", {}).get("optimizer"), self._settings.optimizer
        if saved != own:
            raise ConfigurationError(
                f"{source} was written by 'impala' with the optimizer {saved!r}; expected 'impala' with {own!r}. "
                "Resume with the algorithm and the optimizer of that run."
            )

    def _returns(self, batch: Batch, log_rho_t: Tensor, values: Tensor, n_env_steps: Tensor | float) -> VTraceReturns:
        """Computes targets and advantages from clipped and scaled rewards and each step's true next observation."""
        settings = self._settings
        v_t, v_tp1 = values_and_next_values(batch, values)
        return vtrace(
            log_rho_t=log_rho_t,
            r_t=self._shaped_rewards(batch, n_env_steps),
            discount_t=settings.discount * ~batch.terminated,
            # No trace runs from the next episode back into the one that ended.
            continues_t=~(batch.terminated | batch.truncated),
            v_t=v_t,
            v_tp1=v_tp1,
            clip_rho=settings.clip_rho,
            clip_c=settings.clip_c,
            clip_pg_rho=settings.clip_pg_rho,
            lambda_=settings.trace_lambda,
        )
