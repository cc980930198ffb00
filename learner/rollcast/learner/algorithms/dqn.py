"""DQN: learns the value of every action; the policy takes the best one.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518; van Hasselt et al. 2016,
"Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461; Wang et al. 2016, "Dueling
Network Architectures for Deep Reinforcement Learning", https://arxiv.org/abs/1511.06581.
"""

import torch
from torch import Tensor

from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.one_policy import PRIORITIES
from rollcast.learner.algorithms.q_learning import QLearning
from rollcast.learner.algorithms.transitions import Transitions, transitions_of
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import Numbers, Outputs


class Dqn(QLearning[DqnSettings]):
    """Double, dueling Q-learning with a target network, from n-step transitions.

    The loss of a batch of transitions (s, a, r, s'):

        y = r + gamma Q'(s', argmax_a' Q(s', a'))        (double: equation 4 of van Hasselt et al.)
        mean[ w H(Q(s, a) - y) ]

    gamma is 0 where the episode terminated, and the discount of one step to the power of n for n-step transitions.
    H is Huber's loss, w are importance weights. Actions are Discrete; with action masks, a' are those that s' allows.
    """

    name = "dqn"
    replay_entry = "transitions"

    def _compute(self, batch: Batch, numbers: Numbers) -> Outputs:
        settings = self._settings
        transitions = transitions_of(
            batch,
            self._substep_key,
            discount=settings.discount,
            reward_scale=settings.reward_scale,
            normalized=self._policy.normalized,
        )
        target = self._targets(transitions)
        outputs = self._network(transitions.observation)
        allowed = self._policy.allowed_actions(transitions.observation, self._substep_key)
        learnt = self._learn(
            outputs,
            transitions.action,
            allowed,
            target,
            transitions.weight,
            count=transitions.n_learnt,
            learning_rate=numbers["learning_rate"],
        )
        priorities = learnt.error.abs()
        return {
            **learnt.metrics,
            "mean_value": learnt.value.mean(),
            "mean_td_error": priorities.mean(),
            PRIORITIES: priorities,
        }

    @torch.no_grad()
    def _targets(self, transitions: Transitions) -> Tensor:
        """Computes the targets y of the class's docstring: float32 `[B]`."""
        observation = transitions.next_observation
        allowed = self._policy.allowed_actions(observation, self._substep_key)
        online = self._network(observation) if self._settings.double else None
        value = self._best_values(self._target.module(observation), online, allowed)
        return torch.addcmul(transitions.reward, transitions.discount, value)
