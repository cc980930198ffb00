"""Makes batches for a rank: its own, or one that counts for nothing while other ranks have theirs."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.batch import Batch
from rollcast.learner.experience.experience import Experience, ExperienceSource, SaveExperience
from rollcast.learner.ranks.homes import RankHomes
from rollcast.learner.ranks.rounds import RankRounds, RankState, Round, policy_digest
from rollcast.services.errors import (
    CollectInterruptedError,
    CollectTimeoutError,
    NotReadyError,
    TrainingEndedError,
)
from rollcast.services.replay.replay import ReplayStatus

# Ranks that are paused, or all have no data, ask each other so often.
_IDLE_S: Final = 0.1
# A rank without actors looks so long for rollouts that may still be queued.
_GLANCE_S: Final = 0.01


@dataclasses.dataclass(slots=True)
class RankWishes:
    """The wishes of a rank for the next round. The trainer sets it; any thread may ask for a checkpoint.

    Attributes:
        ends: Not 0 once the run has reached its end: the number of the reason. What rank 0 says counts, and stands here
            at every rank when all have agreed.
        checkpoint: True if a checkpoint is due.
        stops: Returns how the rank is to stop; see `RankState.stops`.
        is_paused: Returns whether an operator has paused training.
        on_start: Called when the actors are served.
        on_stop: Called when the ranks stop, with how they do.
        on_checkpoint: Called, on every rank after the same update, to take a checkpoint.
    """

    ends: int = 0
    checkpoint: bool = False
    stops: Callable[[], int] = lambda: 0
    is_paused: Callable[[], bool] = lambda: False
    on_start: Callable[[], None] = lambda: None
    on_stop: Callable[[int], None] = lambda _stops: None
    on_checkpoint: Callable[[], None] = lambda: None


class RankedExperience(ExperienceSource):
    """The source of a rank: another source, and the rounds in which the ranks agree on each update.

    A rank that has no batch after `data_timeout_s` takes part with one that has no transition: it has no weight in the
    mean over all ranks. While no rank has a batch, there is no update.

    Args:
        source: Makes this rank's own batches.
        rounds: Connects it with the other ranks.
        homes: Is told how many actors each rank has.
        algorithm: Shares what it has observed; its policy is compared.
        wishes: What this rank wants.
        nothing: Makes a batch without any transition, on a device.
        data_timeout_s: The seconds to wait for a batch; a rank that has no actors does not wait.
        check_updates: The updates between two comparisons of the policies of all ranks.
    """

    def __init__(
        self,
        source: ExperienceSource,
        rounds: RankRounds,
        homes: RankHomes,
        algorithm: Algorithm,
        wishes: RankWishes,
        *,
        nothing: Callable[[str], Batch],
        data_timeout_s: float,
        check_updates: int,
    ) -> None:
        super().__init__(source.actors)
        self.moving = source.moving
        self._source = source
        self._rounds = rounds
        self._homes = homes
        self._algorithm = algorithm
        self._wishes = wishes
        self._nothing = nothing
        self._data_timeout_s = data_timeout_s
        self._check_updates = check_updates
        # A batch that was fetched, and has not been learnt from yet.
        self._held: Experience | None = None
        self._is_own = False
        self._compared_after = -1

    def start(self) -> None:
        """Starts the actors."""
        self._source.start()
        self._wishes.on_start()

    def begin_save(self) -> SaveExperience:
        """See `ExperienceSource.begin_save`."""
        return self._source.begin_save()

    def load(self, directory: Path) -> None:
        """See `ExperienceSource.load`."""
        self._source.load(directory)

    def renew(self) -> None:
        """See `ExperienceSource.renew`."""
        self._source.renew()

    def replay_status(self) -> ReplayStatus | None:
        """See `ExperienceSource.replay_status`."""
        return self._source.replay_status()

    def metrics(self) -> dict[str, float]:
        """See `ExperienceSource.metrics`."""
        return self._source.metrics()

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Waits for the next update of all ranks, and returns this rank's share of it.

        Raises:
            TrainingEndedError: The ranks have agreed that the run has reached its end.
            CollectInterruptedError: A rank was asked to stop.
            CollectTimeoutError: No rank has had a batch for `collect_timeout_s`.
            RankLostError: Another rank is gone, or has not come in time.
        """
        began, wishes, gives_up = time.monotonic(), self._wishes, False
        while True:
            self._fetch(learner_device, progress)
            agreed = self._agree(gives_up=gives_up)
            if agreed.checkpoint:
                wishes.checkpoint = False
                wishes.on_checkpoint()
            if agreed.stops:
                wishes.on_stop(agreed.stops)
                raise CollectInterruptedError("collecting was interrupted: a rank was asked to stop training")
            if agreed.ends:
                wishes.ends = agreed.ends
                raise TrainingEndedError("the ranks have agreed that training has ended; expected no more updates")
            if agreed.has_batch and not agreed.is_paused:
                return self._share(agreed, learner_device, waited_s=time.monotonic() - began)
            if agreed.is_paused:
                began, gives_up = time.monotonic(), False
            elif agreed.gives_up:
                # All of them now, so that they can save together what they have.
                raise CollectTimeoutError(
                    f"no rank has had a batch for {self.actors.collect_timeout_s:.0f} s; expected actors at one of "
                    f"them; they have {' and '.join(map(str, agreed.n_actors))} actors; start actors"
                )
            elif time.monotonic() - began > self.actors.collect_timeout_s:
                gives_up = True
            time.sleep(_IDLE_S)

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Notes that an update has used a batch, if it was this rank's own; shares what was observed."""
        if self._is_own:
            self._source.learnt(batch, priorities)
        self._algorithm.share_observations()

    def _fetch(self, learner_device: str, progress: float) -> None:
        """Fetches a batch within the deadline, unless one is held, or there is to be no update."""
        wishes = self._wishes
        if self._held is not None or wishes.ends or wishes.stops() or wishes.is_paused():
            return
        # A rank without actors has nothing to wait for.
        patience_s = self._data_timeout_s if self.actors.n_actors_alive else _GLANCE_S
        self.actors.wait_until = time.monotonic() + patience_s
        try:
            self._held = self._source.next(learner_device, progress=progress)
        except (NotReadyError, CollectInterruptedError):
            # Without a batch: the round says what comes next.
            return
        finally:
            self.actors.wait_until = float("inf")

    def _agree(self, *, gives_up: bool) -> Round:
        held, wishes, n_updates = self._held, self._wishes, self._algorithm.n_updates
        digest, weights = 0, None if held is None else held.batch.largest_weight
        if n_updates % self._check_updates == 0 and n_updates != self._compared_after:
            self._compared_after = n_updates
            digest = policy_digest(self._algorithm.policy_state())
        with self.actors.waiting.waiting_for("the other ranks"):
            agreed = self._rounds.agree(
                RankState(
                    has_batch=held is not None,
                    env_steps=0 if held is None else held.env_steps,
                    ends=wishes.ends,
                    stops=wishes.stops(),
                    is_paused=wishes.is_paused(),
                    checkpoint=wishes.checkpoint,
                    gives_up=gives_up,
                    n_actors=self.actors.n_actors_alive,
                    n_episodes=0 if held is None else held.n_episodes,
                    returns=() if held is None else held.returns,
                    largest_weight=weights or 0.0,
                    digest=digest,
                )
            )
        self._homes.note_loads(agreed.n_actors)
        return agreed

    def _share(self, agreed: Round, learner_device: str, *, waited_s: float) -> Experience:
        """Returns this rank's batch, or nothing, with the steps and the episodes of all ranks."""
        held, self._held = self._held, None
        self._is_own = held is not None
        if held is None:
            return Experience(
                batch=self._nothing(learner_device),
                env_steps=agreed.env_steps,
                n_episodes=agreed.n_episodes,
                returns=agreed.returns,
                policy_lag=np.zeros(0, np.int64),
                waited_s=waited_s,
            )
        batch = held.batch
        if batch.weights is not None and batch.largest_weight:
            # Each rank has scaled its weights by its own largest.
            batch = dataclasses.replace(batch, weights=batch.weights * (batch.largest_weight / agreed.largest_weight))
        return dataclasses.replace(
            held,
            batch=batch,
            env_steps=agreed.env_steps,
            n_episodes=agreed.n_episodes,
            returns=agreed.returns,
            waited_s=waited_s,
        )
