"""PPO: an actor-critic that makes several passes over each batch, and bounds the change of the policy.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rollcast.learner.algorithms.actor_critic_networks import (
    CRITIC_SETTINGS,
    STEP_METRICS,
    ActorCriticNetworks,
    watch_of,
)
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.descent import Descent, adam
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.minibatches import (
    Steps,
    check_minibatch_steps,
    default_items_in_minibatch,
    items_in_minibatch,
    steps_of,
)
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.ppo_loss import ppo_loss
from rollcast.learner.algorithms.ppo_settings import ClippedSurrogateSettings, PpoSettings
from rollcast.learner.algorithms.reward_scaling import RewardScaling
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.trajectories import (
    columns_of,
    explained_variance,
    normalized,
    shares_of_steps,
    values_and_next_values,
)
from rollcast.learner.algorithms.vtrace import gae
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

# The passes end when the policy is this many times `target_kl` away, as in the code of OpenAI's Spinning Up.
_KL_MARGIN = 1.5


class Ppo(OnePolicy[PpoSettings]):
    """PPO with the clipped surrogate, generalised advantages, and new random minibatches in each pass.

    `gae` computes advantages and targets once a batch. `ClippedSurrogate` minimises `ppo_loss` in passes over the
    batch.

    The policy in training must have played the batch; `on_policy` ensures this. `Algorithm` documents which thread may
    call which method.
    """

    name = "ppo"
    on_policy = True
    learns_recurrent_policies = True
    learns_frame_stacks = True
    critic_settings = CRITIC_SETTINGS

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: PpoSettings, seed: int) -> None:
        key, device = self._substep_key, self._device
        self._networks = ActorCriticNetworks(spaces, spec, settings, substep_key=key, device=device)
        self._policy = self._networks.policy
        self._rewards = RewardScaling(settings, device)
        self._watch = watch_of(settings, device)
        self._surrogate = ClippedSurrogate(self._networks, self._watch, settings, algorithm=self.name, seed=seed)
        self._schedules = settings.schedules()
        self._parts = {**self._networks.by_name, **self._surrogate.parts, **self._rewards.parts}

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch; see `Algorithm.update`."""
        now = {name: value_at(progress) for name, value_at in self._schedules.items()}
        return {**self._run(self._learn, batch, {**now, "n_env_steps": batch.n_env_steps}), **now}

    def _learn(self, batch: Batch, now: Numbers) -> Outputs:
        """Makes the optimiser steps for a batch `[T, B, ...]`, on the device; `now` has the values of schedules."""
        columns, n_env_steps = columns_of(batch, self._substep_key), now["n_env_steps"]
        with torch.no_grad():
            rows = self._networks.observations(batch, columns)
            v_t, v_tp1 = values_and_next_values(batch, self._networks.values(batch, columns, rows))
            advantage, target = gae(
                r_t=self._rewards(batch, n_env_steps, self._reduction),
                discount_t=self._settings.discount * ~batch.terminated,
                continues_t=~(batch.terminated | batch.truncated),
                v_t=v_t,
                v_tp1=v_tp1,
                lambda_=self._settings.gae_lambda,
                overridden_t=batch.overridden,
            )
            steps = steps_of(batch, columns, rows, value=v_t, advantage=advantage, target=target)
        passes = self._surrogate.learn(steps, now, self._reduction)
        weight = shares_of_steps(batch, n_env_steps).flatten()
        return {
            **passes.terms,
            "reward_factor": self._rewards.factor(),
            "approx_kl": passes.approx_kl,
            "clip_fraction": passes.clip_fraction,
            "explained_variance": explained_variance(steps.value, steps.target, weight),
            "epochs": passes.n_epochs,
        }

    def why_not_captured(self) -> str | None:
        """Returns the reason why updates cannot be captured; see `Algorithm.why_not_captured`."""
        return self._surrogate.why_not_captured() or super().why_not_captured()

    def end_updates_early(self, when: Callable[[], bool]) -> None:
        """Ends updates after a minibatch once `when` returns True; see `Algorithm.end_updates_early`."""
        self._surrogate.ends_early = when


class Passes(NamedTuple):
    """The report of all passes over a batch; each quantity is 0-dim, without graph.

    Attributes:
        terms: The means of the `STEP_METRICS`.
        approx_kl: The divergence from the policy that acted, in the last pass.
        clip_fraction: The mean share of steps outside the clip range.
        n_epochs: The number of passes; a fraction if the last pass ended early.
    """

    terms: Metrics
    approx_kl: Tensor
    clip_fraction: Tensor
    n_epochs: float


class ClippedSurrogate:
    """Minimises `ppo_loss` in several passes over the steps of a batch, with new random minibatches in each pass.

    Attributes:
        parts: The parts of a checkpoint, by name.
        ends_early: Returns True once the update should end.
    """

    def __init__(
        self,
        networks: ActorCriticNetworks,
        watch: DivergenceWatch,
        settings: ClippedSurrogateSettings,
        *,
        algorithm: str,
        seed: int,
        max_ratio: float = math.inf,
    ) -> None:
        """Makes the optimiser, and the generator of minibatches.

        Args:
            networks: The networks in training.
            watch: Watches each optimiser step.
            settings: The algorithm's settings.
            algorithm: The algorithm's name, for messages.
            seed: Seed of the minibatches.
            max_ratio: Steps with larger importance weights have no effect.
        """
        self._networks, self._watch, self._settings = networks, watch, settings
        self._algorithm, self._max_ratio = algorithm, max_ratio
        beta1, beta2 = settings.adam_beta1, settings.adam_beta2
        optimizer = adam(settings.learning_rate, beta1=beta1, beta2=beta2, epsilon=settings.optimizer_epsilon)
        self._descent = Descent(networks.by_name, optimizer, max_grad_norm=settings.max_grad_norm)
        networks.pair(self._descent.parameters)
        self._generator = torch.Generator(device=self._descent.parameters.vector.device).manual_seed(seed)
        self.parts: Mapping[str, StatePart] = {"optimizer": self._descent, "generator": self._generator}
        self.ends_early: Callable[[], bool] = lambda: False

    def why_not_captured(self) -> str | None:
        """Returns the reason why a graph cannot repeat `learn`: with a target KL, the host decides after each pass."""
        if self._settings.target_kl is not None:
            return f"--{self._algorithm}.target-kl makes the host wait for the divergence after each pass"
        return None

    def learn(self, steps: Steps, now: Numbers, reduction: GradientReduction) -> Passes:
        """Makes passes over the steps until all are done, the policy has moved too far, or `ends_early` returns True.

        Args:
            steps: The steps of a batch.
            now: Has the `learning_rate`, the `entropy_cost` and the `clip_range`.
            reduction: The ranks.
        """
        target_kl = self._settings.target_kl
        n_items = steps.n_items
        size = self._items_in_minibatch(n_items, len(steps.valid) // n_items)
        n_minibatches = n_items / size  # of a pass; a smaller last one counts by its share
        total: Tensor | float = 0.0
        n_epochs = 0.0
        while n_epochs < self._settings.n_epochs:
            of_pass = [self._step(steps.at(index), now, reduction) for index in self._minibatches(n_items, size)]
            is_whole = len(of_pass) >= n_minibatches
            if n_items % size and is_whole:
                of_pass[-1] = of_pass[-1] * (n_items % size / size)
            of_epoch = 1.0 if is_whole else len(of_pass) / n_minibatches
            sums = torch.stack(of_pass).sum(dim=0)
            total, n_epochs = total + sums, n_epochs + of_epoch
            if self.ends_early():
                break
            # waits for the device, so only if it is asked for
            if target_kl is not None and float(sums[-2]) > _KL_MARGIN * target_kl * n_minibatches:
                break
        assert isinstance(total, Tensor)  # there is at least one pass
        *terms, _, clip_fraction = (total / (n_epochs * n_minibatches)).unbind()
        # the KL is that of the last pass, as Stable-Baselines3 reports it
        approx_kl = sums[-2] / (of_epoch * n_minibatches)
        return Passes(dict(zip(STEP_METRICS, terms, strict=True)), approx_kl, clip_fraction, n_epochs)

    def _minibatches(self, n_items: int, size: int) -> Iterator[Tensor]:
        """Yields the indices of the minibatches of a pass, fewer if it ends early. The last has the remaining items.

        Args:
            n_items: The steps of the batch, or its trajectories.
            size: The items of a minibatch.
        """
        order = torch.randperm(n_items, generator=self._generator, device=self._generator.device)
        for start in range(0, n_items, size):
            if start and self.ends_early():
                return
            yield order[start : start + size]

    def _items_in_minibatch(self, n_items: int, steps_of_item: int) -> int:
        n_steps = self._settings.minibatch_steps
        check_minibatch_steps(n_steps, n_items * steps_of_item, algorithm=self._algorithm)
        if n_steps is not None:
            return items_in_minibatch(n_steps, steps_of_item, algorithm=self._algorithm)
        return default_items_in_minibatch(n_items, steps_of_item)

    def _step(self, steps: Steps, now: Numbers, reduction: GradientReduction) -> Tensor:
        """Makes one optimiser step; returns the `STEP_METRICS`, the KL estimate and the clip fraction, `[7]`."""
        settings = self._settings
        count = steps.valid.sum()
        weight = steps.valid / count.clamp(min=1.0)
        advantage = steps.advantage
        if settings.normalize_advantages:
            advantage = normalized(advantage, weight, count=count, reduction=reduction)
        forward = self._networks.evaluate(steps)
        loss = ppo_loss(
            log_prob=forward.log_prob,
            acted_log_prob=steps.log_prob,
            entropy=forward.entropy,
            value=forward.values,
            acted_value=steps.value,
            target=steps.target,
            advantage=advantage,
            weight=weight,
            clip_range=now["clip_range"],
            clip_range_value=settings.clip_range_value,
            value_cost=settings.value_cost,
            entropy_cost=now["entropy_cost"],
            max_ratio=self._max_ratio,
        )
        (*terms, approx_kl, clip_fraction), norms = self._descent.backward(
            [forward.log_prob, forward.entropy, forward.values],
            [loss.policy, loss.value, loss.entropy, loss.approx_kl, loss.clip_fraction],
            output_gradients=loss.gradients,
            write_gradient=forward.write_gradient,
            count=count,
            reduction=reduction,
        )
        self._watch.observe(*terms, *norms)
        self._descent.step(now["learning_rate"])
        return torch.stack([*terms, *norms, approx_kl, clip_fraction])
