"""Merges training observations into the policy's running mean and variance, each step once.

Only transitions count. Rows after the end of an episode, rows before all transitions of a trajectory, and last
observations do not count.
"""

import numpy as np

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.batch import Batch
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.devices.staging import Staging, send_together
from rollcast.services.rollouts.rollouts import Rollout


def observe_batch(policy: TorchPolicy, batch: Batch) -> None:
    """Merges a batch of fresh trajectories. Does nothing if the policy does not normalise.

    Call it after the update, so that the update normalises observations like the actors.

    Args:
        policy: The policy in training.
        batch: Trajectories `[T, B, ...]` on its device.
    """
    for key, columns in batch.substeps.items():
        policy.observe(columns.observation, batch.valid, batch.n_env_steps, key)


class RolloutObserver:
    """Merges the observations of rollouts that enter a replay buffer. Does nothing if the policy does not normalise.

    A copier moves observations to the device, because a copy from ordinary memory would block the host. For one thread.

    Args:
        policy: The policy in training.
        copier: Copies to the policy's device; None: a new copier, made for the first rollout.
    """

    def __init__(self, policy: TorchPolicy, copier: Copier | None = None) -> None:
        self._policy = policy
        self._copier = copier
        self._staging: Staging | None = None

    def __call__(self, rollout: Rollout) -> None:
        """Merges a rollout.

        Args:
            rollout: The rollout, in main memory.
        """
        if not self._policy.spec.normalize_observations:
            return
        if self._copier is None:
            self._copier = make_copier(next(self._policy.parameters()).device)
        if self._staging is None:
            self._staging = Staging(self._copier)
        valid = np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid
        for key, columns in rollout.substeps.items():
            arrays = [valid, *columns.observation.values()]
            staged = self._staging.open([(array.shape, array.dtype) for array in arrays])
            for target, array in zip(staged, arrays, strict=True):
                target[...] = array
            ((on_device, *leaves),), fence = send_together(self._copier, self._staging)
            fence.before_use()
            observation = dict(zip(columns.observation, leaves, strict=True))
            self._policy.observe(observation, on_device, rollout.n_env_steps, key)
