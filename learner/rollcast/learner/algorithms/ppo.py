"""PPO: an actor-critic that learns from each batch several times, and bounds how far the policy moves meanwhile.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.actor.policies.torch_distributions import log_prob_and_entropy
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.learner.algorithms.actor_critic import ActorCritic, LossTerms
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.gae import gae
from rollcast.learner.algorithms.one_substep import columns_of
from rollcast.learner.algorithms.ppo_loss import ppo_loss
from rollcast.learner.algorithms.ppo_settings import PpoSettings, items_in_minibatch
from rollcast.learner.algorithms.schedules import make_schedule
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.trajectories import (
    explained_variance,
    normalized,
    observations_to_value,
    sequence_starts,
    values_and_next_values,
)
from rollcast.learner.batch import Batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

# The passes end when the policy is this many times `target_kl` away, as in the code of OpenAI's Spinning Up.
_KL_MARGIN = 1.5


class _Memory(NamedTuple):
    """The states of a recurrent policy in B whole trajectories.

    Attributes:
        initial_state: float32 `[B, S]`.
        starts: The rows `[T, B]` where the state does not follow from the row before.
    """

    initial_state: Tensor
    starts: SequenceStarts

    @property
    def n_trajectories(self) -> int:
        """B."""
        return len(self.initial_state)

    def at(self, index: Tensor) -> "_Memory":
        """Returns the memory of the trajectories at an int64 index `[M]`."""
        return _Memory(self.initial_state[index], SequenceStarts(*(rows[:, index] for rows in self.starts)))


class _Steps(NamedTuple):
    """The N = T * B steps of a batch, or those of a minibatch: in any order, or whole trajectories, row by row.

    Attributes:
        observation: `[N, ...]` for every leaf, as networks see it.
        action: `[N, ...]`.
        log_prob: float32 `[N]`, under the policy that acted.
        value: float32 `[N]`, by the critic before the first pass.
        advantage: float32 `[N]`.
        target: float32 `[N]`, of the critic.
        valid: float32 `[N]`, 1 where the step is a transition, else 0.
        memory: Of a recurrent policy, whose minibatches are whole trajectories; None without.
    """

    observation: Mapping[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    valid: Tensor
    memory: _Memory | None

    @property
    def n_items(self) -> int:
        """The number of steps, or, with a memory, of trajectories: what minibatches are drawn from."""
        return len(self.valid) if self.memory is None else self.memory.n_trajectories

    def at(self, index: Tensor) -> "_Steps":
        """Returns the steps, or with a memory the trajectories, at an int64 index `[M]`."""
        n = self.n_items

        def taken(column: Tensor) -> Tensor:
            if self.memory is None:
                return column[index]
            return column.view(-1, n, *column.shape[1:])[:, index].flatten(0, 1)

        return _Steps(
            observation={path: taken(leaf) for path, leaf in self.observation.items()},
            action=taken(self.action),
            log_prob=taken(self.log_prob),
            value=taken(self.value),
            advantage=taken(self.advantage),
            target=taken(self.target),
            valid=taken(self.valid),
            memory=None if self.memory is None else self.memory.at(index),
        )


class Ppo(ActorCritic[PpoSettings]):
    """PPO with the clipped surrogate, generalised advantages, and minibatches that are drawn anew for each pass.

    `ppo_loss` is what each step of the optimiser minimises; `gae` computes advantages and targets once a batch.

    The batch must have been played by the policy that learns, as `on_policy` asks of the actors. `Algorithm` says which
    thread may call which method.
    """

    name = "ppo"
    on_policy = True

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: PpoSettings, seed: int) -> None:
        super()._build(spaces, spec, settings, seed)
        self._clip_range = make_schedule(settings.clip_range_schedule, settings.clip_range, 0.0)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch in several passes; see `Algorithm.update`."""
        target_kl = self._settings.target_kl
        schedules = {**self._follow_schedules(progress), "clip_range": self._clip_range(progress)}
        steps = self._prepare(batch)
        total: Tensor | float = 0.0
        n_minibatches = n_epochs = 0
        while n_epochs < self._settings.n_epochs:
            of_pass = [
                self._step(steps.at(index), clip_range=schedules["clip_range"], entropy_cost=schedules["entropy_cost"])
                for index in self._minibatches(steps.n_items, len(steps.valid) // steps.n_items)
            ]
            sums = torch.stack(of_pass).sum(dim=0)
            total, n_minibatches, n_epochs = total + sums, n_minibatches + len(of_pass), n_epochs + 1
            # waits for the device, so only if it is asked for
            if target_kl is not None and float(sums[-2]) > _KL_MARGIN * target_kl * len(of_pass):
                break
        assert isinstance(total, Tensor)  # there is at least one pass
        self._n_updates += 1
        *terms, approx_kl, clip_fraction = (total / n_minibatches).unbind()
        return {
            **LossTerms(*terms)._asdict(),
            **schedules,
            "reward_factor": self._reward_factor(),
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
            "explained_variance": explained_variance(
                steps.value, steps.target, steps.valid / max(batch.n_env_steps, 1)
            ),
            "epochs": float(n_epochs),
        }

    @torch.no_grad()
    def _prepare(self, batch: Batch) -> _Steps:
        """Computes values, advantages and targets, and flattens the batch into steps."""
        settings, columns = self._settings, columns_of(batch, self._substep_key)
        n_steps = batch.reward.numel()
        if n_steps < settings.minibatch_steps:
            raise ConfigurationError(
                f"--ppo.minibatch-steps: {settings.minibatch_steps}, and a batch has {n_steps} steps (batch_size * "
                "n_rollout_steps); expected no more than that; lower it, or raise --batch-size or --n-rollout-steps"
            )
        rows = self._policy.normalized(observations_to_value(batch, columns), self._substep_key)
        if columns.initial_state is None:
            values, memory = self._critic(rows), None
        else:
            values = self._forward(batch, columns).values
            memory = _Memory(columns.initial_state, sequence_starts(batch))
        v_t, v_tp1 = values_and_next_values(batch, values)
        advantage, target = gae(
            r_t=self._shaped_rewards(batch),
            discount_t=settings.discount * ~batch.terminated,
            continues_t=~(batch.terminated | batch.truncated),
            v_t=v_t,
            v_tp1=v_tp1,
            lambda_=settings.gae_lambda,
        )
        return _Steps(
            observation={path: leaf[:n_steps] for path, leaf in rows.items()},
            action=columns.action.flatten(0, 1),
            log_prob=columns.log_prob.flatten(),
            value=v_t.flatten(),
            advantage=advantage.flatten(),
            target=target.flatten(),
            valid=batch.valid.flatten().to(torch.float32),
            memory=memory,
        )

    def _minibatches(self, n_items: int, steps_of_item: int = 1) -> Iterator[Tensor]:
        """Yields the indices of the minibatches of one pass; the last is as large as the others, or left out.

        Args:
            n_items: The steps of the batch, or its trajectories.
            steps_of_item: 1, or the steps of a trajectory.
        """
        size = items_in_minibatch(self._settings.minibatch_steps, steps_of_item)
        order = torch.randperm(n_items, generator=self._generator, device=self._device)
        for start in range(0, n_items - size + 1, size):
            yield order[start : start + size]

    def _step(self, steps: _Steps, *, clip_range: float, entropy_cost: float) -> Tensor:
        """Makes one step of the optimiser; returns the `LossTerms`, the KL estimate and the clip fraction, `[7]`."""
        settings = self._settings
        weight = steps.valid / steps.valid.sum().clamp(min=1.0)
        advantage = normalized(steps.advantage, weight) if settings.normalize_advantages else steps.advantage
        if steps.memory is None:
            parameters = self._policy.parameters_of(steps.observation, self._substep_key, is_normalized=True)
            value = self._critic(steps.observation)
        else:
            parameters, value, _ = self._unroll(steps.observation, *steps.memory)
        log_prob, entropy = log_prob_and_entropy(self._action_space, parameters, steps.action)
        loss = ppo_loss(
            log_prob=log_prob,
            acted_log_prob=steps.log_prob,
            entropy=entropy,
            value=value,
            acted_value=steps.value,
            target=steps.target,
            advantage=advantage,
            weight=weight,
            clip_range=clip_range,
            clip_range_value=settings.clip_range_value,
            value_cost=settings.value_cost,
            entropy_cost=entropy_cost,
        )
        terms = self._descend(loss.total, policy=loss.policy, value=loss.value, entropy=loss.entropy)
        return torch.stack([*terms, loss.approx_kl, loss.clip_fraction])

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return {**super()._checkpoint_parts(), "generator": self._generator}
