"""Where a trainer's batches come from: the seam between on-policy and off-policy learning."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.batch import Batch
from rollcast.services.replay.replay import ReplayStatus
from rollcast.services.rollouts.rollouts import EpisodeStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A batch to learn from, and what has come from the actors since the one before.

    Attributes:
        batch: What to learn from.
        env_steps: Environment steps that have come, every agent's.
        episodes: Episodes that have ended in them.
        policy_lag: int64, a number each trajectory that has come: newest version less the version that acted.
        waited_s: Seconds spent waiting for the batch.
    """

    batch: Batch
    env_steps: int
    episodes: tuple[EpisodeStatistics, ...]
    policy_lag: NDArray[np.int64]
    waited_s: float


class SaveExperience(Protocol):
    """Writes what a batch depends on."""

    def __call__(self, directory: Path, previous: Path | None, rest: Callable[[], None]) -> Mapping[Path, str]:
        """Writes it.

        Args:
            directory: Of a checkpoint.
            previous: An earlier checkpoint of this very run, whose files may be linked; None: there is none.
            rest: Called after each piece; may take its time.

        Returns:
            xxh3-128 of files whose digest came about while they were written.
        """


def _save_nothing(directory: Path, previous: Path | None, rest: Callable[[], None]) -> Mapping[Path, str]:
    del directory, previous, rest
    return {}


class ExperienceSource(ABC):
    """Starts the actors and makes batches of what they play. Used by one thread, the trainer's.

    Args:
        actors: Who plays; started and stopped by the source.
    """

    def __init__(self, actors: DistributedActors) -> None:
        self.actors = actors
        # Held while trajectories go from the actors' account into what `begin_save` saves, and by whoever saves both.
        self.moving = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.actors.stop()

    def start(self) -> None:
        """Starts the actors."""
        self.actors.start()

    def begin_save(self) -> SaveExperience:
        """Takes note of what the next batch depends on besides the actors; what it returns writes it, in any thread."""
        return _save_nothing

    def load(self, directory: Path) -> None:  # noqa: B027  # fresh rollouts depend on nothing
        """Reads what `begin_save` wrote; called before `start`."""

    def renew(self) -> None:
        """Brings source and actors into the state in which a run that is resumed finds them, where they can be."""
        self.actors.renew()

    @abstractmethod
    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Waits for the next batch.

        Args:
            learner_device: Where it is wanted.
            progress: How far training is, in [0, 1]: how batches are drawn may depend on it.

        Raises:
            CollectTimeoutError: None came by the deadline; says who was waited for.
            CollectInterruptedError: Training is to end.
            ActorFailedError: The actors cannot go on.
        """

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Takes note of what an update made of a batch.

        Args:
            batch: The batch.
            priorities: float32 `[B]`, how surprising its entries were; None where the algorithm does not say.
        """
        del batch, priorities

    def replay_status(self) -> ReplayStatus | None:
        """How the replay buffer stands, and who waits for it; None where there is none. Any thread may ask."""
        return None

    def metrics(self) -> dict[str, float]:
        """What there is to write about where batches come from, by name."""
        return {}


class FreshExperience(ExperienceSource):
    """Every trajectory once, in the order in which they come: for on-policy algorithms."""

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """The next `batch_size` trajectories."""
        batch, _, _, waited_s = self.actors.collect_outputs(learner_device)
        return Experience(
            batch=batch,
            env_steps=batch.n_env_steps,
            episodes=batch.episodes,
            policy_lag=np.maximum(0, self.actors.policy_version - batch.policy_version),
            waited_s=waited_s,
        )

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """See `ExperienceSource.learnt`; the batch is in the weights."""
        self.actors.covered(self.actors.batch_names)
