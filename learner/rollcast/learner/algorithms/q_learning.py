"""The base of the algorithms that learn the values of Discrete actions with a target network."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rollcast.actor.policies.exploration import epsilon_ladder
from rollcast.actor.policies.q_values import as_discrete
from rollcast.actor.policies.torch_action_masks import forbid
from rollcast.actor.policies.torch_q_values import action_values, outputs_gradient
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.descent import Descent
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.one_policy import PRIORITIES, OnePolicy
from rollcast.learner.algorithms.optimizers import adam
from rollcast.learner.algorithms.q_learning_settings import QLearningSettings
from rollcast.learner.algorithms.target_networks import TargetNetwork
from rollcast.learner.algorithms.training_state import StatePart
from rollcast.learner.algorithms.transitions import with_head
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import EnvironmentSpaces

OwnSettings = TypeVar("OwnSettings", bound=QLearningSettings)

_WATCHED = ("loss", "gradient norm")


class Learnt(NamedTuple):
    """The report of one step of the optimiser, from before it.

    Attributes:
        value: float32 `[N]`, the values of the actions taken.
        error: float32 `[N]`, the TD errors: values minus targets.
        metrics: Further metrics.
    """

    value: Tensor
    error: Tensor
    metrics: Metrics


class QLearning(OnePolicy[OwnSettings]):
    """Base of a deep Q-network: double, dueling, with a target network and a ladder of epsilons.

    The Q-network is the policy; the target network is never sent to actors. Actor slot i explores with rate i of a
    ladder of epsilons (Horgan et al. 2018, "Ape-X"), which is sent with the policy. The algorithm chooses
    the spec's head: give `policy.spec` to actors. `Algorithm` says which thread may call which method.
    """

    learns_from_replay = True
    learns_frame_stacks = True

    def _build(self, spaces: EnvironmentSpaces, spec: PolicySpec, settings: OwnSettings, seed: int) -> None:
        key = self._substep_key
        action_space = as_discrete(spaces[key].action)
        self._n_actions, self._first_action = int(action_space.n), int(action_space.start)
        self._policy = TorchPolicy(spaces, with_head(spec, settings.head)).to(self._device)
        self._network = self._policy.networks[key]
        self._descent = Descent(
            {"policy": self._policy},
            adam(settings.learning_rate, epsilon=settings.adam_epsilon),
            max_grad_norm=settings.max_grad_norm,
        )
        self._target = TargetNetwork(self._network, self._descent.parameters)
        schedules = settings.schedules()
        self._learning_rate, self._epsilon = schedules["learning_rate"], schedules["epsilon"]
        self._ladder_base = -1.0
        self._explore(0.0)
        self._watch = DivergenceWatch(
            _WATCHED,
            device=self._device,
            advice=f"Lower the learning rate ({settings.learning_rate:g}) or max_grad_norm "
            f"({settings.max_grad_norm:g}), raise target_update_interval ({settings.target_update_interval}), or scale "
            "rewards and observations down.",
        )

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy, which is the Q-network, and copies it to the target; see `Algorithm.begin_with`."""
        super().begin_with(state, None)
        self._target.follow(1.0)
        return False

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch of the replay buffer; see `Algorithm.update`."""
        settings, learning_rate = self._settings, self._learning_rate(progress)
        outputs = dict(self._work.run(self._compute, batch, {"learning_rate": learning_rate}))
        priorities = outputs.pop(PRIORITIES)
        assert isinstance(priorities, Tensor)
        self._priorities = priorities
        self._watch.end_update()
        self._n_updates += 1
        if self._n_updates % settings.target_update_interval == 0:
            self._target.follow(settings.target_tau)
        self._explore(progress)
        return {**outputs, "learning_rate": learning_rate, "epsilon": self._ladder_base}

    @abstractmethod
    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        """Makes the optimiser's step for a batch; returns the metrics and `PRIORITIES`. See `Work`.

        Args:
            batch: The batch.
            numbers: The `learning_rate`.
        """

    @torch.no_grad()
    def _best_values(self, target: Tensor, online: Tensor | None, allowed: Tensor | None) -> Tensor:
        """Returns the values of the best actions.

        Args:
            target: float32 `[N, P]`, outputs of the target network, which values the actions.
            online: float32 `[N, P]`, outputs of the network that chooses them (double Q-learning); None: the target.
            allowed: bool `[N, n]`, the actions that may be chosen; None: all.

        Returns:
            float32 `[N]`.
        """
        head = self._policy.spec.head
        values = action_values(target, head, allowed)
        if online is None:
            return forbid(values, allowed).amax(dim=1)
        choosing = forbid(action_values(online, head, allowed), allowed)
        return values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)

    def _learn(
        self,
        outputs: Tensor,
        action: Tensor,
        allowed: Tensor | None,
        target: Tensor,
        weight: Tensor,
        *,
        count: Tensor | float,
        learning_rate: Tensor | float,
    ) -> Learnt:
        """Makes a step of the optimiser down the weighted sum of Huber's losses.

        Args:
            outputs: `[N, P]`, outputs of the network, with their graph.
            action: `[N]`, the actions taken, in the space's dtype.
            allowed: bool `[N, n]`, the actions that were allowed; None: all.
            target: float32 `[N]`, the targets of their values.
            weight: float32 `[N]`, the weights in the loss.
            count: The number of entries that these weights make a mean of.
            learning_rate: That of this step.

        Raises:
            RollcastError: If training diverged; the parameters are as before.
        """
        delta, head = self._settings.huber_delta, self._policy.spec.head
        with torch.no_grad():
            index = action.to(torch.int64) - self._first_action
            value = action_values(outputs, head, allowed).gather(1, index[:, None]).squeeze(1)
            error = value - target
            # The derivative of Huber's loss is the clipped error; the loss is error * clipped - clipped^2 / 2.
            clipped = error.clamp(-delta, delta)
            gradient = outputs_gradient(index, clipped * weight, self._n_actions, head, allowed)
            loss = torch.dot(weight, clipped * (error - 0.5 * clipped))
        (loss,), (norm,) = self._descent.backward(
            [outputs], [loss], output_gradients=[gradient], count=count, reduction=self._reduction
        )
        self._watch.observe(loss, norm)
        self._descent.step(learning_rate)
        return Learnt(value, error, {"loss": loss, "grad_norm": norm})

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        return {
            "policy": self._policy.networks,
            "normalization": self._policy.normalization,
            "target": self._target.module,
            "optimizer": self._descent,
        }

    def _checkpoint_values(self) -> Mapping[str, Any]:
        return {"epsilon": self._ladder_base}

    def _load_checkpoint_values(self, values: Mapping[str, Any], source: Path) -> None:
        self._explore_by(float(values["epsilon"]))

    def _explore(self, progress: float) -> None:
        """Sets the actors' epsilons for the progress of training."""
        self._explore_by(self._epsilon(progress))

    def _explore_by(self, base: float) -> None:
        if base != self._ladder_base:
            self._ladder_base = base
            settings = self._settings
            self._policy.set_epsilons(epsilon_ladder(settings.n_epsilons, epsilon=base, alpha=settings.epsilon_alpha))
