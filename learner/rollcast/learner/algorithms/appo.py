"""APPO: PPO's clipped loss on rollouts of older policies, whose advantages and targets V-trace corrects.

Petrenko et al. 2020, "Sample Factory: Egocentric 3D Control from Pixels at 100000 FPS with Asynchronous Reinforcement
Learning", https://arxiv.org/abs/2006.11751, section 3.4; Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.clipped_surrogate import ClippedSurrogate, Estimates
from rollcast.learner.algorithms.ppo_loss import kl_estimate
from rollcast.learner.algorithms.trajectories import shares_of_steps, values_and_next_values
from rollcast.learner.algorithms.vtrace import vtrace
from rollcast.learner.batch import Batch, BatchColumns


class Appo(ClippedSurrogate[AppoSettings]):
    """APPO: passes over each batch as PPO does, but actors never wait, so a batch may be some updates old.

    `vtrace` computes advantages and targets once a batch, with the values and the policy at the start of the update.
    `ppo_loss` then clips the ratio to the policy that acted, as Sample Factory does: the older a step is, the less it
    may still move the policy. Its advantages leave V-trace's own importance weight out, because the ratio is one.

    RLlib's APPO clips the ratio to a target network instead, which is close to the policy that learns. Then nothing
    bounds the distance from the policy that acted: at a lag of 8 updates, CartPole's mean return was 204 after 150k
    steps, here 437 (16 environments, means of two seeds).

    With batches of the policy that learns, and `trace_lambda` equal to `gae_lambda`, this is PPO. `Algorithm` says
    which thread may call which method.
    """

    name = "appo"
    # That of Sample Factory. Without a bound, a step that the policy of today takes e^89 times as often overflows.
    _max_ratio = 20.0

    def _estimates(
        self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor], n_env_steps: Tensor | float
    ) -> Estimates:
        settings, forward = self._settings, self._outputs(batch, columns, rows)
        v_t, v_tp1 = values_and_next_values(batch, forward.values)
        log_rho_t = (forward.log_prob.view_as(batch.reward) - columns.log_prob) * batch.valid
        returns = vtrace(
            log_rho_t=log_rho_t,
            r_t=self._shaped_rewards(batch, n_env_steps),
            discount_t=settings.discount * ~batch.terminated,
            continues_t=~(batch.terminated | batch.truncated),
            v_t=v_t,
            v_tp1=v_tp1,
            clip_rho=settings.clip_rho,
            clip_c=settings.clip_c,
            lambda_=settings.trace_lambda,
        )
        weight = shares_of_steps(batch, n_env_steps).flatten()
        metrics = {"stale_kl": torch.dot(weight, kl_estimate(log_rho_t.flatten().clamp(max=math.log(self._max_ratio))))}
        return Estimates(columns.log_prob, v_t, returns.advantage, returns.vs, metrics)
