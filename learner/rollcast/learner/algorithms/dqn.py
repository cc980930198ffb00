"""DQN: learns the value of every action; the policy takes the best one.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518; van Hasselt et al. 2016,
"Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461; Wang et al. 2016, "Dueling
Network Architectures for Deep Reinforcement Learning", https://arxiv.org/abs/1511.06581.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollcast.actor.policies.exploration import epsilon_ladder
from rollcast.actor.policies.q_values import as_discrete
from rollcast.actor.policies.torch_action_masks import forbid
from rollcast.actor.policies.torch_q_values import action_values, outputs_gradient
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.flat_parameters import FlatParameters
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.algorithms.schedules import make_schedule
from rollcast.learner.algorithms.target_networks import TargetNetwork
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.transitions import Transitions, transitions_of, with_head
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

_WATCHED = ("loss", "gradient norm")


class Dqn(OnePolicy[DqnSettings]):
    """Double, dueling Q-learning with a target network, from n-step transitions.

    The loss of a batch of transitions (s, a, r, s'):

        y = r + gamma Q'(s', argmax_a' Q(s', a'))        (double: equation 4 of van Hasselt et al.)
        mean[ w H(Q(s, a) - y) ]

    gamma is 0 where the episode terminated, and the discount of one step to the power of n for n-step transitions.
    H is Huber's loss, w are importance weights. Actions are Discrete; with action masks, a' are those that s' allows.

    The Q-network is the policy; the target network is never sent to actors. Actor slot i explores with rate i of a
    ladder of epsilons (Horgan et al. 2018, "Ape-X"), which is sent with the policy. The algorithm chooses
    the spec's head: give `policy.spec` to actors. `Algorithm` says which thread may call which method.
    """

    name = "dqn"
    learns_from_replay = True
    learns_frame_stacks = True

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: DqnSettings, seed: int) -> None:
        key = self._substep_key
        action_space = as_discrete(spaces[key].action)
        self._n_actions, self._first_action = int(action_space.n), int(action_space.start)
        self._policy = TorchPolicy(spaces, with_head(spec, settings.head)).to(self._device)
        self._network = self._policy.networks[key]
        self._parameters = FlatParameters({"policy": self._policy})
        self._target = TargetNetwork(self._network, self._parameters)
        self._optimizer = torch.optim.Adam(
            [self._parameters.vector], lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
        )
        self._learning_rate = make_schedule(settings.learning_rate_schedule, settings.learning_rate, 0.0)
        end = settings.epsilon if settings.epsilon_end is None else settings.epsilon_end
        self._epsilon = make_schedule("linear", settings.epsilon, end)
        self._ladder_base = -1.0
        self._explore(0.0)
        self._watch = DivergenceWatch(
            _WATCHED,
            device=self._device,
            advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
            f"({settings.max_grad_norm:g}), raise target_update_interval ({settings.target_update_interval}), or scale "
            "rewards and observations down.",
        )

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch of transitions; see `Algorithm.update`."""
        settings = self._settings
        transitions = transitions_of(
            batch,
            self._substep_key,
            discount=settings.discount,
            reward_scale=settings.reward_scale,
            normalized=self._policy.normalized,
        )
        head = self._policy.spec.head
        target = self._targets(transitions)
        outputs = self._network(transitions.observation)
        allowed = self._policy.allowed_actions(transitions.observation, self._substep_key)
        with torch.no_grad():
            index = transitions.action.to(torch.int64) - self._first_action
            value = action_values(outputs, head, allowed).gather(1, index[:, None]).squeeze(1)
            error = value - target
            # The derivative of Huber's loss is the clipped error; the loss is error * clipped - clipped^2 / 2.
            clipped = error.clamp(-settings.huber_delta, settings.huber_delta)
            gradient = outputs_gradient(index, clipped * transitions.weight, self._n_actions, head, allowed)
        self._parameters.backward([outputs], [gradient])
        with torch.no_grad():
            norm = self._parameters.clip_gradient("policy", settings.max_grad_norm)
            self._priorities = error.abs()
            loss = torch.dot(transitions.weight, clipped * (error - 0.5 * clipped))
            mean_value = value.mean()
            self._watch.observe(loss, norm)

        learning_rate = self._learning_rate(progress)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._n_updates += 1
        if self._n_updates % settings.target_update_interval == 0:
            self._target.follow(settings.target_tau)
        self._explore(progress)
        return {
            "loss": loss,
            "mean_value": mean_value,
            "mean_td_error": self._priorities.mean(),
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "epsilon": self._ladder_base,
        }

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy, which is the Q-network, and copies it to the target; see `Algorithm.begin_with`."""
        super().begin_with(state, None)
        self._target.follow(1.0)
        return False

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return {
            "policy": self._policy.networks,
            "normalization": self._policy.normalization,
            "target": self._target.module,
            "optimizer": self._optimizer,
        }

    def _checkpoint_values(self) -> Mapping[str, Any]:
        return {"epsilon": self._ladder_base}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        self._explore_by(float(values["epsilon"]))

    @torch.no_grad()
    def _targets(self, transitions: Transitions) -> Tensor:
        """Computes the targets y of the class's docstring: float32 `[B]`."""
        observation, head = transitions.next_observation, self._policy.spec.head
        allowed = self._policy.allowed_actions(observation, self._substep_key)
        values = action_values(self._target.module(observation), head, allowed)
        if self._settings.double:
            choosing = forbid(action_values(self._network(observation), head, allowed), allowed)
            value = values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)
        else:
            value = forbid(values, allowed).amax(dim=1)
        return torch.addcmul(transitions.reward, transitions.discount, value)

    def _explore(self, progress: float) -> None:
        """Sets the actors' epsilons for the progress of training."""
        self._explore_by(self._epsilon(progress))

    def _explore_by(self, base: float) -> None:
        if base != self._ladder_base:
            self._ladder_base = base
            settings = self._settings
            self._policy.set_epsilons(epsilon_ladder(settings.n_epsilons, epsilon=base, alpha=settings.epsilon_alpha))
