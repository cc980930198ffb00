"""Who may steer training: the learner's side of `LearnerService`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.served import ServedDistributedActors
from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.services.errors import NotReadyError, RefusedError
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.version import software_version

# How long a caller waits for the running update to end. The largest updates take seconds.
_UPDATE_TIMEOUT_S = 55.0

# How often a trainer that is paused, or has finished, looks whether it is to stop.
_PAUSE_LOOK_S = 0.25

# Given the operator's turn, it writes a checkpoint and returns its folder and policy version.
SaveCheckpoint: TypeAlias = Callable[[Callable[[], AbstractContextManager[None]]], tuple[Path, int]]


class TrainingControl:
    """Shared by the trainer, which takes turns, and the API's threads, which pause, save and stop.

    Invariant: an update runs only inside `update_turn`; while an operator's action runs, none does.

    Args:
        algorithm: Its name, for the status.
        run_dir: Where the run is kept; None: nowhere.
        batch_size: Trajectories, or entries of the replay buffer, in a batch; 0: nobody has said.
    """

    def __init__(self, *, algorithm: str, run_dir: Path | None, batch_size: int = 0) -> None:
        self.algorithm = algorithm
        self._batch_size = batch_size
        self._run_dir = run_dir
        self._changed = threading.Condition()  # guards the four below
        self._phase = Phase.STARTING
        self._updating = False
        self._paused = False
        self._n_actions = 0
        self._experience: ExperienceSource | None = None
        self._actors: DistributedActors | None = None
        self._progress: TrainingProgress | None = None
        self._save: SaveCheckpoint | None = None
        # a plain flag, so that a signal handler may set it
        self._stop_requested = False

    def attach(self, experience: ExperienceSource, progress: TrainingProgress, save: SaveCheckpoint | None) -> None:
        """Says what is steered. Called once, before training starts.

        Args:
            experience: Where batches come from, and who acts for it.
            progress: How far training is.
            save: Begins a checkpoint inside what it is given, inside which no update runs, and writes it after that;
                returns its folder and policy version. None: there is nowhere to.
        """
        self._experience, self._progress, self._save = experience, progress, save
        self._actors = experience.actors

    @property
    def stop_requested(self) -> bool:
        """True once training is to end."""
        return self._stop_requested

    def enter(self, phase: Phase) -> None:
        """Says where in its life the learner is."""
        with self._changed:
            self._phase = phase
            self._changed.notify_all()

    @contextmanager
    def update_turn(self) -> Iterator[None]:
        """The trainer's turn: waits while training is paused or an operator's action runs."""
        with self._changed:
            while (self._paused or self._n_actions) and not self._stop_requested:
                self._changed.wait(_PAUSE_LOOK_S)
            self._updating = True
        try:
            yield
        finally:
            with self._changed:
                self._updating = False
                self._changed.notify_all()

    @contextmanager
    def _between_updates(self) -> Iterator[None]:
        """An operator's turn: no update runs inside."""
        with self._changed:
            self._n_actions += 1
            idle = self._changed.wait_for(lambda: not self._updating, _UPDATE_TIMEOUT_S)
        try:
            if not idle:
                raise NotReadyError(f"the running update has not ended for {_UPDATE_TIMEOUT_S:.0f} s; try again")
            yield
        finally:
            with self._changed:
                self._n_actions -= 1
                self._changed.notify_all()

    def pause(self) -> None:
        """Lets no update start until `resume`; returns when none is running.

        Raises:
            RefusedError: Training has ended.
        """
        with self._changed:
            if self._phase in (Phase.STOPPING, Phase.FINISHED):
                raise RefusedError(f"training is {self._phase.name.lower()}: there is nothing to pause")
            self._paused = True
        with self._between_updates():
            pass

    def resume(self) -> None:
        """Ends a pause."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def save_checkpoint(self) -> tuple[str, int]:
        """Writes a checkpoint of a moment between two updates, beside training; returns its folder and policy version.

        Raises:
            RefusedError: The run keeps no directory.
            NotReadyError: The running update or the checkpoint takes too long, or training has not started.
        """
        if self._save is None:
            if self._actors is None:
                raise NotReadyError("training has not started; try again with backoff")
            raise RefusedError("this run keeps no directory: start it with --run-dir to have checkpoints")
        path, version = self._save(self._between_updates)
        return str(path), version

    def request_stop(self) -> None:
        """Ends training after the running update. A signal handler may call it."""
        self._stop_requested = True
        if self._actors is not None:
            self._actors.interrupt()

    def wait_for_stop(self) -> None:
        """Waits until somebody has asked for the end."""
        with self._changed:
            while not self._stop_requested:
                self._changed.wait(_PAUSE_LOOK_S)

    def actors(self) -> list[ActorInfo]:
        """Every actor that has joined, by slot."""
        return self._actors.actor_infos if isinstance(self._actors, ServedDistributedActors) else []

    def describe(self) -> LearnerDescription:
        """Tells what is learnt, and from what.

        Raises:
            NotReadyError: Training has not started.
        """
        intake = self._actors.intake if isinstance(self._actors, ServedDistributedActors) else None
        if intake is None:
            raise NotReadyError("the learner is starting or stopping; expected it to train; try again with backoff")
        return intake.describe(algorithm=self.algorithm, batch_size=self._batch_size)

    def status(self) -> LearnerStatus:
        """How training stands, and what it is waiting for."""
        with self._changed:
            phase = Phase.PAUSED if self._paused and self._phase is Phase.TRAINING else self._phase
        experience, progress = self._experience, self._progress
        if experience is None or progress is None:
            return LearnerStatus(
                phase=phase,
                waiting_for="the environment, the networks and the actors to be made"
                if phase is Phase.STARTING
                else "",
                algorithm=self.algorithm,
                software_version=software_version(),
            )
        actors, now = experience.actors, progress.snapshot()
        reason, waited_s = actors.waiting.current()
        if phase is Phase.PAUSED:
            reason = "an operator to call Resume"
        return LearnerStatus(
            phase=phase,
            waiting_for=reason,
            waiting_s=waited_s,
            env_steps=now.env_steps,
            seconds=now.seconds,
            env_steps_per_second=now.env_steps_per_second,
            updates=now.updates,
            updates_per_second=now.updates_per_second,
            policy_version=actors.policy_version,
            policy_lag_mean=now.policy_lag_mean,
            policy_lag_max=now.policy_lag_max,
            queue_size=actors.queue_size,
            queue_capacity=actors.queue_capacity,
            actors_alive=actors.n_actors_alive,
            actors_expected=actors.n_actors,
            episodes=now.episodes,
            mean_return=now.mean_return,
            duplicate_rollouts=actors.duplicate_rollouts,
            rejected_rollouts=actors.rejected_rollouts,
            stale_trajectories=actors.stale_trajectories,
            run_dir=str(self._run_dir or ""),
            waiting_fraction=now.waiting_fraction,
            replay=experience.replay_status(),
            software_version=software_version(),
            algorithm=self.algorithm,
        )
