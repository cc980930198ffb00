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
    actors; target networks, critics and temperatures stay here. The batch brings everything else that an update needs,
    such as importance weights.

    Not thread-safe: only the trainer's thread calls it. Any thread may use what `policy_state` returned.
    """

    # Counted by the inherited `n_updates`, `save` and `load`: add 1 to it in `update`.
    _n_updates: int = 0

    # True: batches are samples of a replay buffer. False: batches are fresh rollouts, each used once.
    learns_from_replay: bool = False

    # True: every batch must have been played by the policy of the last update; actors wait while it learns.
    on_policy: bool = False

    # The entries of the replay buffer that it learns from, if it learns from one. None: it takes either.
    replay_entry: Literal["transitions", "rollouts"] | None = None

    # True: it can train a recurrent policy, from the recurrent states that rollouts bring.
    learns_recurrent_policies: bool = False
    # True: it can train a policy that sees several frames at once: from the single frames of rollouts, which
    # `algorithms.frame_stacking` stacks, or from the stacks that samples of a replay buffer have.
    learns_frame_stacks: bool = False

    @property
    @abstractmethod
    def policy(self) -> TorchPolicy:
        """The policy that learns; its parameters change with every update."""

    @property
    def n_updates(self) -> int:
        """The number of updates so far, including those before the last `load`."""
        return self._n_updates

    @property
    def priorities(self) -> Tensor | None:
        """The priorities of the last batch's entries in the replay buffer: float32 `[B]` on the algorithm's device.

        These are the absolute TD errors before the last update, without importance weights; reading them waits for
        the device. None before the first update, and for algorithms that do not learn from a replay buffer.
        """
        return None

    @abstractmethod
    def update(self, batch: Batch, *, progress: float) -> Metrics:
        """Learns from a batch, without changing or keeping it.

        Args:
            batch: Trajectories `[T, B, ...]` on the algorithm's device; transitions have T = 1.
            progress: Progress of training, in [0, 1]; schedules follow it.

        Returns:
            Metrics by name: 0-dim tensors on the device, or floats. A record has their means over the updates since the
            record before; `writers.metric_names` lists the exceptions, by the end of the name.

        Raises:
            ConfigurationError: If the batch holds other substeps than the algorithm was made for.
            RollcastError: If training diverged: a loss or a gradient is not finite.
        """

    def why_not_captured(self) -> str | None:
        """Returns why the device's part of updates cannot be captured in a graph; None if it can.

        An algorithm that overrides it and `capture_updates` gives the device's part of each update to `DeviceWork.run`.
        """
        return f"{type(self).__name__} is an algorithm of your own, which does not say what of it a graph can repeat"

    def capture_updates(self, make_work: Callable[[Sequence[torch.Generator]], DeviceWork]) -> None:
        """Runs the device's part of updates as `DeviceWork` from now on. Called before any update and before `load`.

        Args:
            make_work: Makes the `DeviceWork` from the random generators that the part uses.
        """
        raise NotImplementedError(self.why_not_captured())

    def take_replayed(self) -> tuple[int, int]:
        """Returns how many parts of updates were replayed since the last call, and how many there were.

        Both are 0 if updates are not captured. Called by the thread that updates.
        """
        return 0, 0

    def end_updates_early(self, when: Callable[[], bool]) -> None:  # noqa: B027  # one step of the optimiser is short
        """Lets updates end early once training is to end.

        An algorithm whose updates are many steps of the optimiser overrides it. An update that ends early has made
        whole steps, only fewer of them: its result is published and saved as usual.

        Args:
            when: Returns True once the running update should end. It is cheap; call it before each step but the first.
        """

    def join_ranks(self, reduction: GradientReduction) -> None:
        """Learns together with the algorithms of other ranks from here on, each from its own batches.

        Called once on every rank, after `load` and before the first update; the parameters are then those of rank 0.
        An algorithm that overrides it averages its gradients by the reduction, and calls each of the reduction's
        methods equally often on every rank, whatever its batch holds.

        Args:
            reduction: Averages over the ranks.

        Raises:
            ConfigurationError: The algorithm does not support several ranks.
        """
        raise ConfigurationError(
            f"{type(self).__name__} under torchrun with several ranks: it does not average its gradients over them; "
            "expected impala, ppo, appo, dqn, r2d2 or sac, with one substep, or an own algorithm that overrides "
            "join_ranks; train with one rank"
        )

    def share_observations(self) -> None:  # noqa: B027  # only policies that normalise have something to share
        """Merges what all ranks have observed since the last call; every rank calls it after each update."""

    def policy_state(self) -> PolicyState:
        """Returns the policy's arrays, which are sent to actors.

        Returns:
            A snapshot on the CPU that later updates do not change, by the names of the policy's `state_dict`. Its
            arrays may still be on their way from the device: reading the first waits for them.

        Raises:
            RollcastError: If training diverged: actors never get a policy that is not finite. Reading the first array
                may raise it, too.
        """
        return self.policy.state_arrays()

    def begin_with(self, state: PolicyState, checkpoint: Path | None) -> bool:
        """Loads the policy weights of another run; optimisers and counters stay new.

        Called before the first update. Override it if other networks follow the policy, or to load critics, too.

        Args:
            state: Arrays of the other policy, by the names of this one's `state_dict`.
            checkpoint: The directory that the other run's `save` wrote, whatever its algorithm; None: there is none.

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
        """Writes everything that the next update depends on: networks, optimisers, counters. No pickle.

        By default these are the modules, optimisers and tensors among the attributes, and `n_updates`. Override this
        and `load` to keep anything else, or keep a number that learning changes as a tensor.

        Args:
            directory: Made if it does not exist. The write is not atomic; `CheckpointStore.commit` is.

        Raises:
            RollcastError: If training diverged.
        """
        write_parts(
            directory, self._checkpoint_parts(), {"algorithm": self._checkpoint_name(), "n_updates": self.n_updates}
        )

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote; the next update is then the same as without the interruption.

        Args:
            directory: The directory that `save` wrote.

        Raises:
            ConfigurationError: If something is missing, or belongs to another algorithm, network or optimiser.
        """
        arrays, values = self._read_checkpoint(directory)
        load_parts(self._checkpoint_parts(), arrays, source=directory)
        self._n_updates = int(values["n_updates"])

    def _checkpoint_name(self) -> str:
        """Returns the name by which a checkpoint knows its algorithm."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def _checkpoint_parts(self) -> Mapping[str, StatePart]:
        """Returns what `save` writes. Only attributes: neither the elements of lists, nor attributes of attributes."""
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
    """Checks that an algorithm can train a policy that is recurrent, or that sees several frames at once.

    Args:
        algorithm: The algorithm, which need not be initialised.
        spec: The architecture of the policy.
        name: The algorithm's name, for the message.

    Raises:
        ConfigurationError: If it cannot.
    """
    if spec.state_size and not algorithm.learns_recurrent_policies:
        raise ConfigurationError(
            f"--recurrence {spec.recurrence} with {name}, which cannot train recurrent policies; expected impala, "
            "ppo, appo or r2d2 (DQN over sequences), or an own algorithm whose learns_recurrent_policies is True; "
            "choose one of them, or --recurrence none"
        )
    if spec.frame_stack > 1 and not algorithm.learns_frame_stacks:
        raise ConfigurationError(
            f"--frame-stack {spec.frame_stack} with {name}, which cannot stack the frames of its batches; expected "
            "impala, ppo, appo, dqn, r2d2 or sac, or an own algorithm whose learns_frame_stacks is True; choose one of "
            "them, or let the environment stack its frames (gymnasium's FrameStackObservation)"
        )
