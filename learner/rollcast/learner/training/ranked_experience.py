"""Makes batches for a rank: its own batches, or empty batches while other ranks have data."""

import dataclasses
import time
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.batch import Batch
from rollcast.learner.experience.experience import Experience, ExperienceSource, SaveExperience
from rollcast.learner.ranks.equal_policies import policy_digest
from rollcast.learner.ranks.ranks import Ranks
from rollcast.learner.ranks.rounds import RankState, Round
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.rank_checkpoints import AgreedCheckpoints
from rollcast.services.errors import (
    CollectInterruptedError,
    CollectTimeoutError,
    NotReadyError,
    TrainingEndedError,
)
from rollcast.services.history.history import LearnerActivity
from rollcast.services.replay.replay import ReplayStatus
from rollcast.services.status.status import Phase

# The interval between rounds while all ranks are paused or have no data.
_IDLE_S: Final = 0.1
# The time that a rank without actors waits for rollouts that may still be queued.
_GLANCE_S: Final = 0.01
_PHASES: Final = {
    Phase.STARTING: "starting",
    Phase.PAUSED: "pausing",
    Phase.STOPPING: "stopping",
    Phase.FINISHED: "serving the last policy",
}
_ACTIVITIES: Final = {
    LearnerActivity.WAITING: "waiting for a batch",
    LearnerActivity.UPDATING: "learning",
    LearnerActivity.PUBLISHING: "publishing the policy",
    LearnerActivity.CHECKPOINTING: "keeping metrics and checkpoints",
    LearnerActivity.PAUSED: "pausing",
}


class RankedExperience(ExperienceSource):
    """The source of a rank: another source, and the rounds in which the ranks agree on each update.

    A rank without a batch after `data_timeout_s` takes part with an empty batch, which has no weight in the mean over
    all ranks. While no rank has a batch, there is no update.

    Args:
        source: The source of this rank's own batches.
        ranks: Connects this rank with the others.
        algorithm: The algorithm, whose observations are shared and whose policy is compared.
        control: Pauses and stops this rank together with the others.
        checkpoints: Takes the checkpoints on which the ranks agree.
    """

    def __init__(
        self,
        source: ExperienceSource,
        ranks: Ranks,
        algorithm: Algorithm,
        control: TrainingControl,
        checkpoints: AgreedCheckpoints,
    ) -> None:
        super().__init__(source.actors)
        self.moving = source.moving
        self._source = source
        self._ranks = ranks
        self._algorithm = algorithm
        self._control = control
        self._checkpoints = checkpoints
        # A fetched batch that training has not used yet.
        self._held: Experience | None = None
        self._is_own = False
        self._compared_after = -1
        ranks.group.describe_by(self._describe)
        ranks.group.stop_by(lambda: control.stop_requested)

    def start(self) -> None:
        """Starts the actors, and waits until all ranks serve their actors."""
        self._source.start()
        self._ranks.serve_at(self.actors.addresses[-1])

    def begin_save(self) -> SaveExperience:
        """See `ExperienceSource.begin_save`."""
        return self._source.begin_save()

    def load(self, directory: Path) -> None:
        """See `ExperienceSource.load`."""
        self._source.load(directory)

    def renew(self) -> None:
        """See `ExperienceSource.renew`."""
        self._source.renew()

    def empty_batch(self, device: str) -> Batch:
        """See `ExperienceSource.empty_batch`."""
        return self._source.empty_batch(device)

    def replay_status(self) -> ReplayStatus | None:
        """See `ExperienceSource.replay_status`."""
        return self._source.replay_status()

    def metrics(self) -> dict[str, float]:
        """See `ExperienceSource.metrics`."""
        return self._source.metrics()

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Waits for the next update of all ranks, and returns this rank's share of that update.

        Raises:
            TrainingEndedError: The ranks have agreed that the run has reached its end.
            CollectInterruptedError: A rank was asked to stop.
            CollectTimeoutError: No rank has had a batch for `collect_timeout_s`.
            RankLostError: Another rank is gone, or has not answered in time.
        """
        began, gives_up = time.monotonic(), False
        while True:
            self._fetch(learner_device, progress)
            agreed = self._agree(gives_up=gives_up)
            if agreed.checkpoint:
                self._checkpoints.take()
            if agreed.stops:
                self._stop(agreed.stops)
                raise CollectInterruptedError("collecting was interrupted: a rank was asked to stop training")
            if agreed.ends:
                raise TrainingEndedError("the ranks have agreed that training has ended; expected no more updates")
            if agreed.has_batch and not agreed.is_paused:
                return self._share(agreed, learner_device, waited_s=time.monotonic() - began)
            if agreed.is_paused:
                began, gives_up = time.monotonic(), False
            elif agreed.gives_up:
                # All ranks stop now, so that they can save their state together.
                raise CollectTimeoutError(
                    f"no rank has had a batch for {self.actors.collect_timeout_s:.0f} s; expected actors at one of "
                    f"the ranks, which have {' and '.join(map(str, agreed.n_actors))} actors; start actors"
                )
            elif self.actors.is_played(began):
                gives_up = False
            elif time.monotonic() - began > self.actors.collect_timeout_s:
                gives_up = True
            time.sleep(_IDLE_S)

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Records that an update has used a batch, if the batch was this rank's. Shares the observations."""
        if self._is_own:
            self._source.learnt(batch, priorities)
        self._algorithm.share_observations()

    def _fetch(self, learner_device: str, progress: float) -> None:
        """Fetches a batch by the deadline, unless one is held, or no update will follow."""
        if self._held is not None or self._ranks.end or self._control.stop_requested or self._control.is_paused:
            return
        # A rank without actors expects no rollouts.
        patience_s = self._ranks.data_timeout_s if self.actors.n_actors_alive else _GLANCE_S
        self.actors.wait_until = time.monotonic() + patience_s
        try:
            self._held = self._source.next(learner_device, progress=progress)
        except (NotReadyError, CollectInterruptedError):
            # Without a batch: the round decides the next step.
            return
        finally:
            self.actors.wait_until = float("inf")

    def _agree(self, *, gives_up: bool) -> Round:
        held, control, n_updates = self._held, self._control, self._algorithm.n_updates
        digest, weights = 0, None if held is None else held.batch.largest_weight
        if n_updates % self._ranks.check_updates == 0 and n_updates != self._compared_after:
            self._compared_after = n_updates
            digest = policy_digest(self._algorithm.policy_state())
        with self.actors.waiting.waiting_for("the other ranks"):
            return self._ranks.agree(
                RankState(
                    has_batch=held is not None,
                    env_steps=0 if held is None else held.env_steps,
                    stops=int(control.stop_requested) * (1 + self.actors.leaves_waiting),
                    is_paused=control.is_paused,
                    gives_up=gives_up,
                    n_actors=self.actors.n_actors_alive,
                    n_episodes=0 if held is None else held.n_episodes,
                    returns=() if held is None else held.returns,
                    largest_weight=weights or 0.0,
                    digest=digest,
                )
            )

    def _stop(self, stops: int) -> None:
        """Stops this rank like the rank that was asked to stop; see `RankState.stops`."""
        self._control.stop_requested = True
        if stops > 1:
            self.actors.leave_waiting()

    def _describe(self) -> tuple[str, str]:
        """Returns this rank's present work, and its last update; see `Group.describe_by`."""
        status = self._control.status()
        if status.phase is not Phase.TRAINING:
            doing = _PHASES[status.phase]
        elif status.waiting_for:
            doing = f"waiting for {status.waiting_for}"
        else:
            doing = _ACTIVITIES[self._control.run_history.activity.state]
        return doing, f"after {status.updates} updates"

    def _share(self, agreed: Round, learner_device: str, *, waited_s: float) -> Experience:
        """Returns this rank's batch, or an empty one, with the steps and the episodes of all ranks."""
        held, self._held = self._held, None
        self._is_own = held is not None
        if held is None:
            return Experience(
                batch=self._source.empty_batch(learner_device),
                env_steps=agreed.env_steps,
                n_episodes=agreed.n_episodes,
                returns=agreed.returns,
                policy_lag=np.zeros(0, np.int64),
                waited_s=waited_s,
            )
        batch = held.batch
        if batch.weights is not None and batch.largest_weight:
            # Each rank has scaled its weights by its own largest weight.
            batch = dataclasses.replace(batch, weights=batch.weights * (batch.largest_weight / agreed.largest_weight))
        return dataclasses.replace(
            held,
            batch=batch,
            env_steps=agreed.env_steps,
            n_episodes=agreed.n_episodes,
            returns=agreed.returns,
            waited_s=waited_s,
        )
