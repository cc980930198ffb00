"""APPO: PPO's clipped loss on rollouts of older policies, with advantages and targets from V-trace.

Petrenko et al. 2020, "Sample Factory: Egocentric 3D Control from Pixels at 100000 FPS with Asynchronous Reinforcement
Learning", https://arxiv.org/abs/2006.11751, section 3.4; Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.
"""

import math
from collections.abc import Callable
from typing import Final

import torch

from rollcast.learner.algorithms.actor_critic_networks import CRITIC_SETTINGS, ActorCriticNetworks, watch_of
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.minibatches import steps_of
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.ppo import ClippedSurrogate
from rollcast.learner.algorithms.ppo_loss import kl_estimate
from rollcast.learner.algorithms.reward_scaling import RewardScaling
from rollcast.learner.algorithms.trajectories import (
    columns_of,
    explained_variance,
    log_importance,
    shares_of_steps,
    values_and_next_values,
)
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

# Sample Factory's bound. Without a bound, a step that is e^89 times as likely under the present policy overflows.
_MAX_RATIO: Final = 20.0


class Appo(OnePolicy[AppoSettings]):
    """APPO: several passes over each batch, as in PPO. Actors continue to play, so a batch may be some updates old.

    `vtrace` computes advantages and targets once a batch, with the values and the policy at the start of the update.
    `ClippedSurrogate` then minimises `ppo_loss`, which clips the ratio to the policy that acted, as in Sample Factory.
    An older step may therefore move the policy less. The advantages exclude V-trace's importance weight, because the
    ratio already is an importance weight.

    RLlib's APPO clips the ratio to a target network instead, which is close to the policy in training. Then no term
    bounds the distance from the policy that acted, and training with a lag of several updates gets worse.

    With batches that the policy in training played, and `trace_lambda` equal to `gae_lambda`, this is PPO. `Algorithm`
    documents which thread may call which method.
    """

    name = "appo"
    learns_recurrent_policies = True
    learns_frame_stacks = True
    critic_settings = CRITIC_SETTINGS

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: AppoSettings, seed: int) -> None:
        key, device = self._substep_key, self._device
        self._networks = ActorCriticNetworks(spaces, spec, settings, substep_key=key, device=device)
        self._policy = self._networks.policy
        self._rewards = RewardScaling(settings, device)
        self._watch = watch_of(settings, device)
        self._surrogate = ClippedSurrogate(
            self._networks, self._watch, settings, algorithm=self.name, seed=seed, max_ratio=_MAX_RATIO
        )
        self._schedules = settings.schedules()
        self._parts = {**self._networks.by_name, **self._surrogate.parts, **self._rewards.parts}

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch; see `Algorithm.update`."""
        now = {name: value_at(progress) for name, value_at in self._schedules.items()}
        return {**self._run(self._learn, batch, {**now, "n_env_steps": batch.n_env_steps}), **now}

    def _learn(self, batch: Batch, now: Numbers) -> Outputs:
        """Makes the optimiser steps for a batch `[T, B, ...]`, on the device; `now` has the values of schedules."""
        settings, columns, n_env_steps = self._settings, columns_of(batch, self._substep_key), now["n_env_steps"]
        with torch.no_grad():
            rows = self._networks.observations(batch, columns)
            forward = self._networks.forward(batch, columns, rows)
            v_t, v_tp1 = values_and_next_values(batch, forward.values)
            log_rho_t = log_importance(batch, forward.log_prob, columns.log_prob)
            returns = vtrace(
                log_rho_t=log_rho_t,
                r_t=self._rewards(batch, n_env_steps, self._reduction),
                discount_t=settings.discount * ~batch.terminated,
                continues_t=~(batch.terminated | batch.truncated),
                v_t=v_t,
                v_tp1=v_tp1,
                clip_rho=settings.clip_rho,
                clip_c=settings.clip_c,
                lambda_=settings.trace_lambda,
                overridden_t=batch.overridden,
            )
            weight = shares_of_steps(batch, n_env_steps).flatten()
            stale_kl = torch.dot(weight, kl_estimate(log_rho_t.flatten().clamp(max=math.log(_MAX_RATIO))))
            steps = steps_of(batch, columns, rows, value=v_t, advantage=returns.advantage, target=returns.vs)
        passes = self._surrogate.learn(steps, now, self._reduction)
        return {
            **passes.terms,
            "reward_factor": self._rewards.factor(),
            "approx_kl": passes.approx_kl,
            "clip_fraction": passes.clip_fraction,
            "stale_kl": stale_kl,
            "explained_variance": explained_variance(steps.value, steps.target, weight),
            "epochs": passes.n_epochs,
        }

    def why_not_captured(self) -> str | None:
        """Returns the reason why updates cannot be captured; see `Algorithm.why_not_captured`."""
        return self._surrogate.why_not_captured() or super().why_not_captured()

    def end_updates_early(self, when: Callable[[], bool]) -> None:
        """Ends updates after a minibatch once `when` returns True; see `Algorithm.end_updates_early`."""
        self._surrogate.ends_early = when
