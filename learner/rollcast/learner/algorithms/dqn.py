"""DQN: learns the value of every action; the policy takes the best action.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518; van Hasselt et al. 2016,
"Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461; Wang et al. 2016, "Dueling
Network Architectures for Deep Reinforcement Learning", https://arxiv.org/abs/1511.06581.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rollcast.actor.policies.exploration import epsilon_ladder
from rollcast.actor.policies.q_values import as_discrete
from rollcast.actor.policies.torch_action_masks import forbid
from rollcast.actor.policies.torch_q_values import action_values, outputs_gradient
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.descent import Descent, adam
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.one_policy import PRIORITIES, OnePolicy
from rollcast.learner.algorithms.target_networks import TargetNetwork
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.transitions import transitions_of, with_head
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces


class Dqn(OnePolicy[DqnSettings]):
    """Double, dueling Q-learning with a target network, from n-step transitions.

    The loss of a batch of transitions (s, a, r, s'):

        y = r + gamma Q'(s', argmax_a' Q(s', a'))        (double: equation 4 of van Hasselt et al.)
        mean[ w H(Q(s, a) - y) ]

    gamma is 0 where the episode terminated, and the discount of one step to the power of n for n-step transitions. H is
    Huber's loss, w are importance weights. Actions are Discrete; with action masks, a' are the actions that s' allows.
    """

    name = "dqn"
    learns_from_replay = True
    learns_frame_stacks = True
    replay_entry = "transitions"

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: DqnSettings, seed: int) -> None:
        self._q = QNetworks(spaces, spec, settings, substep_key=self._substep_key, device=self._device)
        self._policy, self._watch, self._parts = self._q.policy, self._q.watch, self._q.parts
        self._learning_rate = settings.schedules()["learning_rate"]

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch of the replay buffer; see `Algorithm.update`."""
        learning_rate = self._learning_rate(progress)
        metrics = self._run(self._learn, batch, {"learning_rate": learning_rate})
        self._q.follow(self._n_updates, progress)
        return {**metrics, "learning_rate": learning_rate, "epsilon": self._q.epsilon}

    def _learn(self, batch: Batch, now: Numbers) -> Outputs:
        """Makes the optimiser step for a batch, on the device; `now` has the `learning_rate`."""
        settings, key, policy = self._settings, self._substep_key, self._policy
        discount, scale = settings.discount, settings.reward_scale
        step = transitions_of(batch, key, discount=discount, reward_scale=scale, normalized=policy.normalized)
        with torch.no_grad():
            allowed = policy.allowed_actions(step.next_observation, key)
            online = self._q.online(step.next_observation) if settings.double else None
            value = self._q.best_values(self._q.target.module(step.next_observation), online, allowed)
            target = torch.addcmul(step.reward, step.discount, value)
        learnt = self._q.learn(
            self._q.online(step.observation),
            step.action,
            policy.allowed_actions(step.observation, key),
            target,
            step.weight,
            count=step.n_learnt,
            learning_rate=now["learning_rate"],
            reduction=self._reduction,
        )
        priorities = learnt.error.abs()
        return {
            **learnt.metrics,
            "mean_value": learnt.value.mean(),
            "mean_td_error": priorities.mean(),
            PRIORITIES: priorities,
        }

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy, which is the Q-network, and copies it to the target; see `Algorithm.begin_with`."""
        super().begin_with(state, None)
        self._q.target.follow(1.0)
        return False

    def _checkpoint_values(self) -> Mapping[str, Any]:
        return {"epsilon": self._q.epsilon}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        self._q.explore(float(values["epsilon"]))


class Learnt(NamedTuple):
    """The report of one optimiser step, with values from before the step.

    Attributes:
        value: float32 `[N]`, the values of the taken actions.
        error: float32 `[N]`, the TD errors: values minus targets.
        metrics: Additional metrics.
    """

    value: Tensor
    error: Tensor
    metrics: Metrics


class QNetworks:
    """A Q-network, which is the policy, and a target network, which stays with the learner.

    Actor slot i explores with rate i of a ladder of epsilons (Horgan et al. 2018, "Ape-X"). The ladder is sent with the
    policy. The settings choose the head in the policy's spec: pass `policy.spec` to actors.

    Attributes:
        policy: The policy.
        online: The policy's network.
        target: The target network.
        watch: Watches each optimiser step.
        parts: The parts of a checkpoint, by name.
        epsilon: The rate of random actions of the most exploratory actor.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        settings: DqnSettings,
        *,
        substep_key: str,
        device: torch.device,
    ) -> None:
        self._settings = settings
        action_space = as_discrete(spaces[substep_key].action)
        self._n_actions, self._first_action = int(action_space.n), int(action_space.start)
        self.policy = TorchPolicy(spaces, with_head(spec, settings.head)).to(device)
        self.online = self.policy.networks[substep_key]
        optimizer = adam(settings.learning_rate, epsilon=settings.adam_epsilon)
        self._descent = Descent({"policy": self.policy}, optimizer, max_grad_norm=settings.max_grad_norm)
        self.target = TargetNetwork(self.online, self._descent.parameters)
        self.watch = DivergenceWatch(
            ("loss", "gradient norm"),
            device=device,
            advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
            f"({settings.max_grad_norm:g}), raise target_update_interval ({settings.target_update_interval}), or scale "
            "rewards and observations down.",
        )
        self.parts: Mapping[str, StatePart] = {
            "policy": self.policy.networks,
            "normalization": self.policy.normalization,
            "target": self.target.module,
            "optimizer": self._descent,
        }
        self._scheduled_epsilon = settings.schedules()["epsilon"]
        self.epsilon = -1.0
        self.explore(self._scheduled_epsilon(0.0))

    def explore(self, epsilon: float) -> None:
        """Sets the ladder of the actors' epsilons."""
        if epsilon != self.epsilon:
            self.epsilon = epsilon
            n_epsilons, alpha = self._settings.n_epsilons, self._settings.epsilon_alpha
            self.policy.set_epsilons(epsilon_ladder(n_epsilons, epsilon=epsilon, alpha=alpha))

    def follow(self, n_updates: int, progress: float) -> None:
        """After update `n_updates`, updates the target network, if due, and the epsilons."""
        if n_updates % self._settings.target_update_interval == 0:
            self.target.follow(self._settings.target_tau)
        self.explore(self._scheduled_epsilon(progress))

    @torch.no_grad()
    def best_values(self, target: Tensor, online: Tensor | None, allowed: Tensor | None) -> Tensor:
        """Returns the values of the best actions.

        Args:
            target: float32 `[N, P]`, outputs of the target network, which values the actions.
            online: float32 `[N, P]`, outputs of the network that chooses actions (double Q-learning); None: the target.
            allowed: bool `[N, n]`, the allowed actions; None: all.

        Returns:
            float32 `[N]`.
        """
        head = self.policy.spec.head
        values = action_values(target, head, allowed)
        if online is None:
            return forbid(values, allowed).amax(dim=1)
        choosing = forbid(action_values(online, head, allowed), allowed)
        return values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)

    def learn(
        self,
        outputs: Tensor,
        action: Tensor,
        allowed: Tensor | None,
        target: Tensor,
        weight: Tensor,
        *,
        count: Tensor | float,
        learning_rate: Tensor | float,
        reduction: GradientReduction,
    ) -> Learnt:
        """Makes an optimiser step on the weighted sum of Huber losses.

        Args:
            outputs: `[N, P]`, outputs of the network, with their graph.
            action: `[N]`, the taken actions, in the space's dtype.
            allowed: bool `[N, n]`, the allowed actions; None: all.
            target: float32 `[N]`, the targets of their values.
            weight: float32 `[N]`, the weights in the loss.
            count: The number of entries in the weighted mean.
            learning_rate: The learning rate of this step.
            reduction: The ranks.

        Raises:
            RollcastError: If training diverged; the parameters are unchanged.
        """
        delta, head = self._settings.huber_delta, self.policy.spec.head
        with torch.no_grad():
            index = action.to(torch.int64) - self._first_action
            value = action_values(outputs, head, allowed).gather(1, index[:, None]).squeeze(1)
            error = value - target
            # The derivative of Huber's loss is the clipped error; the loss is error * clipped - clipped^2 / 2.
            clipped = error.clamp(-delta, delta)
            gradient = outputs_gradient(index, clipped * weight, self._n_actions, head, allowed)
            loss = torch.dot(weight, clipped * (error - 0.5 * clipped))
        (loss,), (norm,) = self._descent.backward(
            [outputs], [loss], output_gradients=[gradient], count=count, reduction=reduction
        )
        self.watch.observe(loss, norm)
        self._descent.step(learning_rate)
        return Learnt(value, error, {"loss": loss, "grad_norm": norm})
