"""The interface between the trainer and the algorithm that it trains."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from rollcast.actor.policies.exploration import without_exploration
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.training_state import StatePart, load_parts, read_training_state, write_parts
from rollcast.learner.batch import Batch
from rollcast.learner.devices.work import DeviceWork
from rollcast.learner.ranks.reduction import GradientReduction
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec, PolicyState

# 0-dim tensors on the algorithm's device, or floats. `float(value)` waits for the device: call it only when logging.
Metrics = Mapping[str, Tensor | float]


class Algorithm(ABC):
    """A learning algorithm: turns batches into a better policy.

    The training loop, on-policy or off-policy:

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

    An algorithm owns its networks, its optimisers and its counters, all on one device. Only `policy_state` is sent to
    actors; target networks, critics and temperatures stay with the learner. The batch contains everything else that an
    update needs, such as importance weights.

    Not thread-safe: only the trainer's thread calls it. Any thread may use a result of `policy_state`.
    """

    # Counted by the inherited `n_updates`, `save` and `load`: add 1 to it in `update`.
    _n_updates: int = 0

    # True: batches are samples of a replay buffer. False: batches are fresh rollouts, each used once.
    learns_from_replay: bool = False

    # True: every batch must have been played by the policy of the last update; actors wait while it learns.
    on_policy: bool = False

    # The kind of replay buffer entries that it learns from. None: it accepts either kind.
    replay_entry: Literal["transitions", "rollouts"] | None = None

    # True: it can train a recurrent policy, from the recurrent states in rollouts.
    learns_recurrent_policies: bool = False
    # True: it can train a policy with stacked frames: from the single frames of rollouts, which
    # `algorithms.frame_stacking` stacks, or from the stacks in samples of a replay buffer.
    learns_frame_stacks: bool = False

    @property
    @abstractmethod
    def policy(self) -> TorchPolicy:
        """The policy in training; its parameters change with every update."""

    @property
    def n_updates(self) -> int:
        """The number of updates so far, including those before the last `load`."""
        return self._n_updates

    @property
    def priorities(self) -> Tensor | None:
        """The priorities of the last batch's entries in the replay buffer: float32 `[B]` on the algorithm's device.

        They are the absolute TD errors before the last update, without importance weights. Reading them waits for the
        device. None before the first update, and for algorithms that do not learn from a replay buffer.
        """
        return None

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch, without changing or storing it.

        Args:
            batch: Trajectories `[T, B, ...]` on the algorithm's device; transitions have T = 1.
            progress: The progress of training, in [0, 1], for schedules.

        Returns:
            Metrics by name: 0-dim tensors on the device, or floats. A record has their means over the updates since the
            previous record. `writers.metric_names` lists the exceptions, by the end of the name.

        Raises:
            ConfigurationError: If the batch's substeps are not the algorithm's.
            RollcastError: If training diverged: a loss or a gradient is not finite.
        """

    def why_not_captured(self) -> str | None:
        """Returns the reason why a graph cannot capture the device's part of updates; None if it can.

        An algorithm that overrides it and `capture_updates` passes the device's part of each update to
        `DeviceWork.run`.
        """
        return f"{type(self).__name__} is a custom algorithm that does not override capture_updates"

    def capture_updates(self, make_work: Callable[[Sequence[torch.Generator]], DeviceWork]) -> None:
        """Runs the device's part of updates as `DeviceWork` from now on. Call it before any update and before `load`.

        Args:
            make_work: Makes the `DeviceWork` from the random generators of that part.
        """
        raise NotImplementedError(self.why_not_captured())

    def take_replayed(self) -> tuple[int, int]:
        """Returns the number of parts of updates that graphs replayed since the last call, and of all parts.

        Both are 0 if updates are not captured. Called by the trainer's thread.
        """
        return 0, 0

    def end_updates_early(self, when: Callable[[], bool]) -> None:  # noqa: B027  # one step of the optimiser is short
        """Makes updates end early once training should end.

        An algorithm whose updates have many optimiser steps overrides it. An early end reduces the number of whole
        steps. The result is published and saved as usual.

        Args:
            when: Returns True once the update should end. It is cheap; call it before each step but the first.
        """

    def join_ranks(self, reduction: GradientReduction) -> None:
        """Learns together with the algorithms of other ranks from now on, each from its own batches.

        Called once on every rank, after `load` and before the first update. Afterwards, the parameters are those of
        rank 0. An algorithm that overrides it averages its gradients with the reduction. It calls each of the
        reduction's methods equally often on every rank, whatever the batch contains.

        Args:
            reduction: Averages over the ranks.

        Raises:
            ConfigurationError: The algorithm does not support several ranks.
        """
        raise ConfigurationError(
            f"{type(self).__name__} under torchrun with several ranks: it does not average its gradients over ranks; "
            "expected impala, ppo, appo, dqn, r2d2 or sac, with one substep, or a custom algorithm that overrides "
            "join_ranks; train with one rank"
        )

    def share_observations(self) -> None:  # noqa: B027  # only policies that normalise have something to share
        """Merges the observations of all ranks since the last call. Every rank calls it after each update."""

    def policy_state(self) -> PolicyState:
        """Returns the policy's arrays for the actors.

        Returns:
            A snapshot on the CPU that later updates do not change, by the names of the policy's `state_dict`. The
            device may still be copying its arrays: reading the first array waits.

        Raises:
            RollcastError: If training diverged: actors never get a policy that is not finite. Reading the first array
                may raise it, too.
        """
        return self.policy.state_arrays()

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy weights of another run; optimisers and counters stay new.

        Called before the first update. Override it if other networks follow the policy, or to load critics, too.

        Args:
            state: Arrays of the other policy, by the names of this policy's `state_dict`.
            checkpoint: The directory from the other run's `save`, of any algorithm; None: no directory.

        Returns:
            True if critics were loaded, too.

        Raises:
            ProtocolMismatchError: If the arrays do not fit this policy.
            ConfigurationError: If the critics do not fit this algorithm.
        """
        del checkpoint
        self.policy.load_weights(without_exploration(state))
        return False

    def save(self, directory: Path) -> None:
        """Writes everything that the next update depends on: networks, optimisers, counters. Uses no pickle.

        By default, it writes the modules, optimisers and tensors among the attributes, and `n_updates`. To save
        anything else, override this method and `load`. A number that learning changes may also be a tensor attribute.

        Args:
            directory: Created if missing. The write is not atomic; `CheckpointStore.commit` is.

        Raises:
            RollcastError: If training diverged.
        """
        write_parts(
            directory, self._checkpoint_parts(), {"algorithm": self._checkpoint_name(), "n_updates": self.n_updates}
        )

    def load(self, directory: Path) -> None:
        """Loads a checkpoint from `save`. The next update is then the same as without the interruption.

        Args:
            directory: The directory from `save`.

        Raises:
            ConfigurationError: If a part is missing, or belongs to another algorithm, network or optimiser.
        """
        arrays, values = self._read_checkpoint(directory)
        load_parts(self._checkpoint_parts(), arrays, source=directory)
        self._n_updates = int(values["n_updates"])

    def _checkpoint_name(self) -> str:
        """Returns the name of the algorithm in checkpoints."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        """Returns the parts for `save`: attributes only, not elements of lists nor attributes of attributes."""
        return {name: part for name, part in vars(self).items() if isinstance(part, nn.Module | Optimizer | Tensor)}

    def _read_checkpoint(self, directory: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, Any]]:
        """Reads a checkpoint of this algorithm; see `read_training_state`."""
        arrays, values = read_training_state(directory)
        if values.get("algorithm") != self._checkpoint_name():
            raise ConfigurationError(
                f"{directory} was written by {values.get('algorithm')!r}; expected {self._checkpoint_name()!r}. "
                "Resume with the algorithm of that run."
            )
        return arrays, values


def check_learns(algorithm: Algorithm, spec: PolicySpec, name: str) -> None:
    """Checks that an algorithm can train a policy that is recurrent, or has stacked frames.

    Args:
        algorithm: The algorithm; it need not be initialised.
        spec: The architecture of the policy.
        name: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If the algorithm cannot train such a policy.
    """
    if spec.state_size and not algorithm.learns_recurrent_policies:
        raise ConfigurationError(
            f"--recurrence {spec.recurrence} with {name}, which cannot train recurrent policies; expected impala, "
            "ppo, appo or r2d2 (DQN over sequences), or a custom algorithm whose learns_recurrent_policies is True; "
            "choose one of them, or --recurrence none"
        )
    if spec.frame_stack > 1 and not algorithm.learns_frame_stacks:
        raise ConfigurationError(
            f"--frame-stack {spec.frame_stack} with {name}, which cannot stack the frames of its batches; expected "
            "impala, ppo, appo, dqn, r2d2 or sac, or a custom algorithm whose learns_frame_stacks is True; choose one "
            "of "
            "them, or let the environment stack its frames (gymnasium's FrameStackObservation)"
        )
