"""Defines the source of a trainer's batches: the interface between on-policy and off-policy learning."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.observation_statistics import observe_batch
from rollcast.learner.batch import Batch
from rollcast.learner.ranks.empty_batch import empty_batch
from rollcast.services.errors import ConfigurationError
from rollcast.services.replay.replay import ReplayStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A batch, and counts of the actors' rollouts since the last batch.

    Attributes:
        batch: The batch to learn from.
        env_steps: The environment steps since the last batch, over all agents.
        n_episodes: The number of episodes that ended in these steps.
        returns: The returns of these episodes, in order of arrival; if there are many, only the last returns.
        policy_lag: int64, for each trajectory since the last batch: the newest policy version minus the version that
            acted.
        waited_s: The seconds of waiting for the batch.
        data_age_s: Seconds from each rollout's arrival to its use in training; empty without arrival times.
    """

    batch: Batch
    env_steps: int
    n_episodes: int
    returns: tuple[float, ...]
    policy_lag: NDArray[np.int64]
    waited_s: float
    data_age_s: tuple[float, ...] = ()


class SaveExperience(Protocol):
    """Writes the state that the next batch depends on; see `ExperienceSource.begin_save`."""

    def __call__(self, directory: Path, previous: Path | None, rest: Callable[[], None]) -> Mapping[Path, str]:
        """Writes the state.

        Args:
            directory: The folder of a checkpoint.
            previous: An earlier checkpoint of the same run, whose files may be linked; None: no earlier one.
            rest: Called after each chunk; it may pause.

        Returns:
            The xxh3-128 digests of the files that were digested during the write.
        """


def _save_no_file(directory: Path, previous: Path | None, rest: Callable[[], None]) -> Mapping[Path, str]:
    del directory, previous, rest
    return {}


class ExperienceSource(ABC):
    """A source of batches, which starts and stops its actors. Used by one thread, the trainer's.

    Attributes:
        actors: See Args.
        moving: A lock that is held while trajectories move from the actors' state into the source's, and while
            both states are saved. So no trajectory is missing or saved twice.

    Args:
        actors: The actors whose trajectories make the batches.
    """

    def __init__(self, actors: DistributedActors) -> None:
        self.actors = actors
        self.moving = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.actors.stop()

    def start(self) -> None:
        """Starts the actors."""
        self.actors.start()

    def begin_save(self) -> SaveExperience:
        """Takes a snapshot of the source's state, without the actors' state; returns a function that writes it.

        Any thread may call that function.
        """
        return _save_no_file

    def load(self, directory: Path) -> None:  # noqa: B027  # fresh rollouts depend on nothing
        """Loads the state of an earlier `begin_save`. Call it before `start`."""

    def renew(self) -> None:
        """Brings source and actors into the state of a resumed run, as far as possible."""
        self.actors.renew()

    @abstractmethod
    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Waits for the next batch.

        Args:
            learner_device: The device for the batch.
            progress: The progress of training, from 0 to 1, for schedules of sampling.

        Raises:
            CollectTimeoutError: No batch was ready by the deadline; the message names the missing actors.
            CollectInterruptedError: Training must end.
            ActorFailedError: The actors cannot continue.
        """

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Records that an update has used a batch.

        Args:
            batch: The batch.
            priorities: float32 `[B]`, the new priorities of its entries; None if the algorithm has none.
        """
        del batch, priorities

    def empty_batch(self, device: str) -> Batch:
        """Returns a batch with the shapes of a batch of `next`, but without transitions, for a rank without data.

        Args:
            device: The device for the batch.

        Raises:
            ConfigurationError: The source does not override this, so it does not support several ranks.
        """
        del device
        raise ConfigurationError(
            f"{type(self).__name__} with several ranks: it makes no batch for a rank without data; expected a source "
            "that overrides empty_batch; train with one rank"
        )

    def replay_status(self) -> ReplayStatus | None:
        """Returns the replay buffer's status, including waits; None without a buffer. Thread-safe."""
        return None

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of this source, by tag."""
        return {}


class FreshExperience(ExperienceSource):
    """A source that uses every trajectory once, in order of arrival: for on-policy algorithms."""

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Waits for the next `batch_size` trajectories."""
        batch, _, _, waited_s = self.actors.collect_outputs(learner_device)
        return Experience(
            batch=batch,
            env_steps=batch.n_env_steps,
            n_episodes=len(batch.episodes),
            returns=tuple(episode.episode_return for episode in batch.episodes),
            policy_lag=np.maximum(0, self.actors.policy_version - batch.policy_version),
            waited_s=waited_s,
            data_age_s=tuple(time.monotonic() - arrived_at for arrived_at in self.actors.batch_arrived_at),
        )

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Tells the actors that training has used the batch, and merges its observations into the policy's statistics.

        Called after the update, so that the update normalises like the actors. The next version has the new running
        mean and variance.
        """
        observe_batch(self.actors.policy, batch)
        self.actors.covered(self.actors.batch_names)

    def empty_batch(self, device: str) -> Batch:
        """See `ExperienceSource.empty_batch`."""
        actors = self.actors
        return empty_batch(actors.policy, n_steps=actors.n_rollout_steps, batch_size=actors.batch_size, device=device)
