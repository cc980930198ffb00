"""SAC: an off-policy actor-critic that maximises the return plus the entropy of the policy.

Haarnoja et al. 2018b, "Soft Actor-Critic Algorithms and Applications", https://arxiv.org/abs/1812.05905; for discrete
actions Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", https://arxiv.org/abs/1910.07207.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.critics import CriticEnsemble
from rollcast.learner.algorithms.descent import Descent, adam
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.one_policy import PRIORITIES, OnePolicy
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.algorithms.soft_actions import mean, smallest, soft_actions
from rollcast.learner.algorithms.target_networks import TargetNetwork
from rollcast.learner.algorithms.transitions import Transitions, transitions_of, with_head
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


class Sac(OnePolicy[SacSettings]):
    """Soft actor-critic with an ensemble of critics, Polyak-averaged targets and a learnt temperature alpha.

    An update on transitions (s, a, r, s'), where gamma is 0 after a termination (Haarnoja et al. 2018b, algorithm 1;
    numbers in brackets are the paper's equations):

        y        = r + gamma E_a'[ min_{i in M} Q'_i(s', a') - alpha log pi(a' | s') ]
        J_Q      = mean[ w sum_i (Q_i(s, a) - y)^2 / 2 ]                              (5, 6)
        J_pi     = mean[ w E_a[ alpha log pi(a | s) - Q(s, a) ] ]                     (7, 9), with the new critics
        J_alpha  = log(alpha) mean[ w (entropy - target entropy) ]                    (18), as in the authors' code
        Q'_i    <- tau Q_i + (1 - tau) Q'_i

    By default there are two critics, M is both, and Q their smallest value, as in the paper. M may be a subset that is
    drawn anew in each update: Chen et al. 2021, "Randomized Ensembled Double Q-Learning: Learning Fast Without a
    Model", https://arxiv.org/abs/2101.05982, algorithm 1. Then Q is the mean of all critics, as in Ball et al. 2023,
    "Efficient Online Reinforcement Learning with Offline Data", https://arxiv.org/abs/2302.02948, algorithm 1. If M is
    all of more than two critics, this is the SAC-N of An et al. 2021, https://arxiv.org/abs/2110.01548, section 3. With
    a `policy_update_interval` of n, J_pi and J_alpha apply only to every n-th update, beginning with the first.

    w are importance weights, 1 if the batch has none. Actions are Discrete or a bounded Box. Critics, targets and
    temperature are never sent to actors. The algorithm chooses the spec's head: pass `policy.spec` to actors.
    `Algorithm` documents which thread may call which method.
    """

    name = "sac"
    learns_from_replay = True
    replay_entry = "transitions"
    learns_frame_stacks = True
    critics = "critics"
    critic_settings: ClassVar[Mapping[str, Any]] = {"n_critics": 2, "critic_layer_norm": False}

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: SacSettings, seed: int) -> None:
        key = self._substep_key
        self._seed = seed
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._actions = soft_actions(spaces[key], self._generator, entropy_ratio=settings.target_entropy_ratio)
        self._policy = TorchPolicy(spaces, with_head(spec, self._actions.head)).to(self._device)
        self._critics = CriticEnsemble(
            spaces,
            spec,
            substep_key=key,
            n_critics=settings.n_critics,
            layer_norm=settings.critic_layer_norm,
        ).to(self._device)
        # set from the start, for both heads, so that every version of the policy has the same arrays
        self._policy.set_uniform_exploration(False)
        adam_of = partial(adam, beta1=settings.adam_beta1, beta2=settings.adam_beta2)
        max_norm = settings.max_grad_norm
        self._policy_descent = Descent(
            {"policy": self._policy}, adam_of(settings.policy_learning_rate), max_grad_norm=max_norm
        )
        self._critic_descent = Descent(
            {"critics": self._critics}, adam_of(settings.critic_learning_rate), max_grad_norm=max_norm
        )
        self._targets = TargetNetwork(self._critics, self._critic_descent.parameters)
        self._combine = mean if settings.n_target_critics < settings.n_critics else smallest
        self._log_temperature = nn.Parameter(
            torch.tensor(math.log(settings.initial_temperature), dtype=torch.float32, device=self._device)
        )
        self._temperature_optimizer = adam_of(settings.temperature_learning_rate)(self._log_temperature)
        self._watch = DivergenceWatch(
            ("critic loss", "policy loss", "temperature", "critics' gradient norm", "policy's gradient norm"),
            device=self._device,
            advice=f"Lower the learning rates (policy {settings.policy_learning_rate:g}, critics "
            f"{settings.critic_learning_rate:g}) or max_grad_norm ({settings.max_grad_norm:g}), or scale rewards and "
            "observations down.",
        )
        # Without the exploration of actors: a resumed run sets it again.
        self._parts = {
            "policy": self._policy.networks,
            "normalization": self._policy.normalization,
            "critics": self._critics,
            "targets": self._targets.module,
            "policy_optimizer": self._policy_descent,
            "critic_optimizer": self._critic_descent,
            "temperature_optimizer": self._temperature_optimizer,
            "log_temperature": self._log_temperature,
            "generator": self._generator,
        }

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch of transitions; see `Algorithm.update`. SAC does not use `progress`."""
        updates_policy = self._n_updates % self._settings.policy_update_interval == 0
        members = self._target_members()
        work = partial(self._learn, updates_policy=updates_policy, members=members)
        variant = updates_policy, None if members is None else tuple(members)
        return self._run(work, batch, {}, variant)

    def why_not_captured(self) -> str | None:
        """Returns the reason why updates cannot be captured: each update draws critics with other addresses."""
        if self._settings.n_target_critics < self._settings.n_critics:
            return "--sac.target-critics draws other critics in each update"
        return super().why_not_captured()

    def _learn(
        self, batch: Batch, _numbers: Numbers, *, updates_policy: bool, members: Sequence[int] | None
    ) -> Outputs:
        """Makes the optimiser steps for a batch of transitions, on the device.

        Args:
            batch: A batch with T = 1.
            updates_policy: True: the update includes policy and temperature.
            members: The critics whose smallest value is the target; None: all.
        """
        settings = self._settings
        discount, scale = settings.discount, settings.reward_scale
        normalized = self._policy.normalized
        step = transitions_of(batch, self._substep_key, discount=discount, reward_scale=scale, normalized=normalized)
        temperature = self._log_temperature.detach().exp()
        of_critics = self._update_critics(step, temperature, members)
        of_policy = self._update_policy(step, temperature) if updates_policy else {}
        nothing = torch.zeros_like(temperature)
        self._watch.observe(
            of_critics["critic_loss"],
            of_policy.get("policy_loss", nothing),
            temperature,
            of_critics["critic_grad_norm"],
            of_policy.get("policy_grad_norm", nothing),
        )
        self._targets.follow(settings.tau)
        return {**of_critics, **of_policy}

    def _update_critics(
        self, step: Transitions, temperature: Tensor, members: Sequence[int] | None
    ) -> dict[str, Tensor]:
        """Makes the critics' step; returns the metrics from before the step, and the `PRIORITIES`."""
        with torch.no_grad():
            outputs = self._policy.parameters_of(step.next_observation, self._substep_key, is_normalized=True)
            soft_value = self._actions.soft_value(
                outputs, self._targets.module, step.next_observation, temperature, members
            )
            target = torch.addcmul(step.reward, step.discount, soft_value)
        values = self._actions.values(self._critics, step.observation, step.action)
        with torch.no_grad():
            errors = values - target
            gradients = errors * step.weight
            loss = 0.5 * (gradients * errors).sum()
            priorities = errors.abs().mean(dim=0)
            mean_value = values.detach().mean()
        (loss, mean_value), (norm,) = self._critic_descent.backward(
            [values],
            [loss, mean_value],
            output_gradients=[gradients],
            count=step.n_learnt,
            reduction=self._reduction,
        )
        self._critic_descent.step()
        return {
            "critic_loss": loss,
            "temperature": temperature,
            "mean_value": mean_value,
            "critic_grad_norm": norm,
            PRIORITIES: priorities,
        }

    def _target_members(self) -> list[int] | None:
        """Returns the critics whose smallest value is the target of this update; None: all.

        They derive from the seed and the update's number, so that a resumed run draws the same ones without saved
        state.
        """
        settings = self._settings
        if settings.n_target_critics == settings.n_critics:
            return None
        rng = np.random.default_rng((self._seed, self._n_updates))
        members: list[int] = rng.choice(settings.n_critics, settings.n_target_critics, replace=False).tolist()
        return members

    def _update_policy(self, step: Transitions, temperature: Tensor) -> dict[str, Tensor]:
        """Makes the policy's step, and that of a learnt temperature; returns the metrics."""
        outputs = self._policy.parameters_of(step.observation, self._substep_key, is_normalized=True)
        improvement = self._actions.improve(outputs, self._critics, step.observation, temperature, self._combine)
        with torch.no_grad():
            loss = torch.dot(step.weight, improvement.loss)
            entropy = torch.dot(step.weight, improvement.entropy)
            # an entropy below the target raises the temperature; with importance weights their sum is not 1
            error = entropy - (step.weight * self._target_entropy(step)).sum()
            gradient = improvement.outputs_gradient * step.weight[:, None]
        (loss, entropy, error), (norm,) = self._policy_descent.backward(
            [outputs],
            [loss, entropy, error],
            output_gradients=[gradient],
            count=step.n_learnt,
            reduction=self._reduction,
        )
        self._policy_descent.step()
        if self._settings.learn_temperature:
            self._log_temperature.grad = error
            self._temperature_optimizer.step()
        return {"policy_loss": loss, "entropy": entropy, "policy_grad_norm": norm}

    def _target_entropy(self, step: Transitions) -> Tensor | float:
        if self._settings.target_entropy is not None:
            return self._settings.target_entropy
        return self._actions.target_entropy(step.observation)

    def _checkpoint_values(self) -> Mapping[str, Any]:
        return {"seed": self._seed}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        # Older checkpoints have none: no critics were drawn then.
        self._seed = int(values.get("seed", self._seed))
