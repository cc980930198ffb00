"""PPO: an actor-critic that learns from each batch several times, and bounds how far the policy moves meanwhile.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Mapping

from torch import Tensor

from rollcast.learner.algorithms.clipped_surrogate import ClippedSurrogate, Estimates
from rollcast.learner.algorithms.gae import gae
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.trajectories import values_and_next_values
from rollcast.learner.batch import Batch, BatchColumns


class Ppo(ClippedSurrogate[PpoSettings]):
    """PPO with the clipped surrogate, generalised advantages, and minibatches that are drawn anew for each pass.

    `ppo_loss` is what each step of the optimiser minimises; `gae` computes advantages and targets once a batch.

    The batch must have been played by the policy that learns, as `on_policy` asks of the actors. `Algorithm` says which
    thread may call which method.
    """

    name = "ppo"
    on_policy = True

    def _estimates(
        self, batch: Batch, columns: BatchColumns, rows: Mapping[str, Tensor], n_env_steps: Tensor | float
    ) -> Estimates:
        # The policy runs only where the critic needs its states: its log-probabilities are those of the actors.
        values = self._values(rows) if columns.initial_state is None else self._outputs(batch, columns, rows).values
        v_t, v_tp1 = values_and_next_values(batch, values)
        advantage, target = gae(
            r_t=self._shaped_rewards(batch, n_env_steps),
            discount_t=self._settings.discount * ~batch.terminated,
            continues_t=~(batch.terminated | batch.truncated),
            v_t=v_t,
            v_tp1=v_tp1,
            lambda_=self._settings.gae_lambda,
        )
        return Estimates(columns.log_prob, v_t, advantage, target, {})
