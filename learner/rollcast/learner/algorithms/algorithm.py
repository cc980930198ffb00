"""The seam between the trainer and whatever it trains."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rollcast.actor.policies.exploration import without_exploration
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.attribute_state import load_attributes, save_attributes
from rollcast.learner.batch import Batch
from rollcast.services.policies.policies import PolicyState

# 0-dim tensors on the algorithm's device, or floats. `float(value)` waits for the device: call it when logging only.
Metrics = Mapping[str, Tensor | float]


class Algorithm(ABC):
    """Turns batches into a better policy; the whole of what a trainer knows of learning.

    The loop that all of them live in, on-policy or off:

        algorithm = Impala(spaces, spec, settings, device=device, seed=seed)
        publisher.publish(version := 0, algorithm.policy_state())
        while not finished:
            batch = batches.next()          # a batch of fresh rollouts, or a sample of the replay buffer
            metrics = algorithm.update(batch, progress=env_steps / total_steps)
            publisher.publish(version := version + 1, algorithm.policy_state())
            if time_to_log:
                writer.write(env_steps, {name: float(value) for name, value in metrics.items()})
            if time_to_save:
                algorithm.save(checkpoint_directory)

    An algorithm owns its networks, its optimisers and its counters, all on one device. Target networks, critics and
    temperatures are its own affair: `policy_state` is all that travels. What an update needs and a rollout does not
    hold (importance weights, indices of a replay buffer) is the affair of the batch it is given.

    Not thread-safe: one thread at a time calls it, the trainer's. What `policy_state` returned may be used by any.
    """

    # What the `n_updates`, `save` and `load` that are inherited count with: add 1 to it in `update`.
    _n_updates: int = 0

    # Whether batches are drawn from a replay buffer, or made of fresh rollouts, each used once.
    learns_from_replay: bool = False

    @property
    @abstractmethod
    def policy(self) -> TorchPolicy:
        """The policy that learns; its parameters change with every update."""

    @property
    def n_updates(self) -> int:
        """How many updates were made, those before the last `load` included."""
        return self._n_updates

    @property
    def priorities(self) -> Tensor | None:
        """What the entries of the last batch are worth sampling again: float32 `[B]` on the algorithm's device.

        The absolute TD errors of the last update, before it and without importance weights, which were not waited for.
        None before the first update, and for algorithms that do not learn from a replay buffer.
        """
        return None

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch, which it neither changes nor keeps.

        Args:
            batch: Trajectories `[T, B, ...]` on the algorithm's device; transitions have T = 1.
            progress: How far training has come, in [0, 1]; schedules follow it.

        Returns:
            What to log, by name: 0-dim tensors that were not waited for, or floats.

        Raises:
            ConfigurationError: If the batch holds other substeps than the algorithm was made for.
            RollcastError: If training diverged: a loss or a gradient is not finite.
        """

    def policy_state(self) -> PolicyState:
        """Returns the policy's arrays, and nothing else, to be cast to actors.

        Returns:
            A snapshot on the CPU that later updates do not change, by the names of the policy's `state_dict`.

        Raises:
            RollcastError: If training diverged, so that no actor ever gets a policy that is not finite.
        """
        return self.policy.state_arrays()

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Begins with the weights of another run in place of its own; optimisers and counters stay new.

        Called before the first update. Extend it where networks follow the policy, or to take critics over.

        Args:
            state: Arrays of the other policy, by the names of this one's `state_dict`.
            checkpoint: What `save` of the other run was given, whatever its algorithm; None: there is none.

        Returns:
            Whether critics were taken over.

        Raises:
            ProtocolMismatchError: If the arrays are not this policy's.
            ConfigurationError: If the critics are not this algorithm's.
        """
        del checkpoint
        self.policy.load_weights(without_exploration(state))
        return False

    def save(self, directory: Path) -> None:
        """Writes everything that the next update depends on: networks, optimisers, counters. No pickle.

        By default: the modules, optimisers and tensors among the attributes, and `n_updates`. Extend it, and `load`,
        for anything else; a number that learning changes may as well be a tensor.

        Args:
            directory: Made if it does not exist. Not atomic: `CheckpointStore.commit` is.

        Raises:
            RollcastError: If training diverged.
        """
        save_attributes(self, directory, {"n_updates": self.n_updates})

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote; the next update is then the one that would have followed.

        Args:
            directory: What `save` was given.

        Raises:
            ConfigurationError: If something is missing there, or is of another algorithm, network or optimiser.
        """
        self._n_updates = int(load_attributes(self, directory)["n_updates"])
