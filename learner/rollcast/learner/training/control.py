"""Controls training for operators: the learner's implementation of `LearnerService`."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from rollcast.learner.experience.experience import ExperienceSource
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.health.rules import evaluator_skips
from rollcast.learner.history.points import Sample
from rollcast.learner.history.run_history import RunHistory
from rollcast.services.errors import NotReadyError, RefusedError
from rollcast.services.history.history import EventSeverity, HistoryUpdate, LearnerActivity, RunFacts
from rollcast.services.limits.limits import UPDATE_TIMEOUT_S
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, EvaluationStatus, LearnerStatus, LearningFinding, Phase
from rollcast.services.version import software_version

# The time that a caller waits for the end of the current update, before the deadline of its call passes.
_UPDATE_WAIT_S: Final = UPDATE_TIMEOUT_S - 5.0

# The interval at which a paused or finished trainer checks whether it has to stop.
_PAUSE_LOOK_S = 0.25

# Writes a checkpoint that begins inside the given context, in which no update runs; returns its folder and version.
SaveCheckpoint: TypeAlias = Callable[[Callable[[], AbstractContextManager[None]]], tuple[Path, int]]


class _Steered(NamedTuple):
    """The parts of a run for its control; see `TrainingControl.attach`."""

    experience: ExperienceSource
    progress: TrainingProgress
    save: SaveCheckpoint | None
    evaluation: Callable[[], EvaluationStatus] | None


class TrainingControl:
    """The control of one run. The trainer updates inside its turns; the API's threads pause, save and stop training.

    Make it before the actors, because their server exposes it. Until the trainer calls `attach`, the status is
    "starting".

    Invariant: updates run only inside `update_turn`, and never while an operator's action runs.

    Args:
        algorithm: The algorithm's name, for the status.
        run_dir: The folder of the run; None: no folder.
        batch_size: The trajectories, or entries of the replay buffer, in a batch; 0 if unknown.
        facts: More properties of the run, for clients that watch it; the control adds its own.
        max_policy_lag: The largest allowed lag of the run; None: no limit.
        pauses_by_rounds: True: `update_turn` lets the trainer continue during a pause, because several ranks agree on
            pauses.
        pauses_at: Names the place where training can be paused, for messages; empty: here.
        learning: Returns the problems of training, for the status; any thread may call it.

    Attributes:
        algorithm: See Args.
        run_history: The history of the run.
        stop_requested: True once training must end.
    """

    def __init__(
        self,
        *,
        algorithm: str,
        run_dir: Path | None,
        batch_size: int = 0,
        facts: RunFacts | None = None,
        max_policy_lag: int | None = None,
        pauses_by_rounds: bool = False,
        pauses_at: str = "",
        learning: Callable[[], tuple[LearningFinding, ...]] = tuple,
    ) -> None:
        self._learning = learning
        self._pauses_by_rounds = pauses_by_rounds
        self._pauses_at = pauses_at
        self.algorithm = algorithm
        self.run_history = RunHistory(max_policy_lag=max_policy_lag)
        self._facts = dataclasses.replace(
            facts or RunFacts(),
            algorithm=algorithm,
            run_dir=str(run_dir or ""),
            started_unix_s=self.run_history.started_unix_s,
            software_version=software_version(),
        )
        self._batch_size = batch_size
        self._run_dir = run_dir
        self._changed = threading.Condition()  # guards the four below
        self._phase = Phase.STARTING
        self._updating = False
        self._paused = False
        self._n_actions = 0
        self._steered: _Steered | None = None
        # a plain flag, so that a signal handler may set it
        self.stop_requested = False

    def attach(
        self,
        experience: ExperienceSource,
        progress: TrainingProgress,
        save: SaveCheckpoint | None,
        evaluation: Callable[[], EvaluationStatus] | None = None,
    ) -> None:
        """Sets the parts of the run. The trainer calls it once, before training starts.

        Args:
            experience: The source of batches, with its actors.
            progress: The progress of training.
            save: Writes a checkpoint; see `SaveCheckpoint`. None if the run has no folder.
            evaluation: Returns the status of evaluations; None if the run evaluates no policies.
        """
        self._steered = _Steered(experience, progress, save, evaluation)

    def enter(self, phase: Phase) -> None:
        """Sets the phase for the status."""
        with self._changed:
            self._phase = phase
            self._changed.notify_all()

    @contextmanager
    def update_turn(self) -> Iterator[None]:
        """Gives the trainer its turn: waits while training is paused or an operator's action runs."""
        with self._changed:
            while ((self._paused and not self._pauses_by_rounds) or self._n_actions) and not self.stop_requested:
                self.run_history.activity.enter(LearnerActivity.PAUSED)
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
        """Gives an operator a turn in which no update runs."""
        with self._changed:
            self._n_actions += 1
            idle = self._changed.wait_for(lambda: not self._updating, _UPDATE_WAIT_S)
        try:
            if not idle:
                raise NotReadyError(f"the running update has not ended for {_UPDATE_WAIT_S:.0f} s; try again")
            yield
        finally:
            with self._changed:
                self._n_actions -= 1
                self._changed.notify_all()

    def pause(self) -> None:
        """Stops updates until `resume`; returns when no update is running.

        Raises:
            RefusedError: Training has ended, or another rank pauses it.
        """
        self._refuse_elsewhere()
        with self._changed:
            if self._phase in (Phase.STOPPING, Phase.FINISHED):
                raise RefusedError(f"training is {self._phase.name.lower()}: there is nothing to pause")
            was_paused, self._paused = self._paused, True
        if not was_paused:
            self.run_history.note(EventSeverity.INFO, "an operator has paused training")
        with self._between_updates():
            pass

    def resume(self) -> None:
        """Ends a pause.

        Raises:
            RefusedError: Another rank pauses training.
        """
        self._refuse_elsewhere()
        with self._changed:
            was_paused, self._paused = self._paused, False
            self._changed.notify_all()
        if was_paused:
            self.run_history.note(EventSeverity.INFO, "an operator has resumed training")

    @property
    def is_paused(self) -> bool:
        """True while an operator has paused training."""
        return self._paused

    def _refuse_elsewhere(self) -> None:
        if self._pauses_at:
            raise RefusedError(
                f"training cannot be paused or resumed here; expected a call to {self._pauses_at}; call there"
            )

    def save_checkpoint(self) -> tuple[str, int]:
        """Writes a checkpoint of the state between two updates, while training continues.

        Returns:
            Its folder, and its policy version.

        Raises:
            RefusedError: The run has no directory.
            NotReadyError: The running update or the checkpoint takes too long, or training has not started.
        """
        if self._steered is None:
            raise NotReadyError("training has not started; try again with backoff")
        if self._steered.save is None:
            raise RefusedError("this run keeps no directory: start it with --run-dir to have checkpoints")
        path, version = self._steered.save(self._between_updates)
        return str(path), version

    def request_stop(self) -> None:
        """Ends training after the current update; see `Algorithm.end_updates_early`. A signal handler may call it."""
        self.stop_requested = True
        if self._steered is not None:
            self._steered.experience.actors.interrupt()

    def wait_for_stop(self) -> None:
        """Waits until `request_stop` is called."""
        with self._changed:
            while not self.stop_requested:
                self._changed.wait(_PAUSE_LOOK_S)

    def actors(self) -> Sequence[ActorInfo]:
        """Returns every actor that has joined, by slot."""
        return () if self._steered is None else self._steered.experience.actors.actor_infos

    def describe(self) -> LearnerDescription:
        """Describes the algorithm, the spaces and the work.

        Raises:
            NotReadyError: The learner is starting or stopping.
        """
        if self._steered is None:
            raise NotReadyError("training has not started; try again with backoff")
        return self._steered.experience.actors.describe(algorithm=self.algorithm, batch_size=self._batch_size)

    def status(self) -> LearnerStatus:
        """Returns the state of training, and the reason for its present wait."""
        with self._changed:
            phase = Phase.PAUSED if self._paused and self._phase is Phase.TRAINING else self._phase
        if self._steered is None:
            return LearnerStatus(
                phase=phase,
                waiting_for="the environment, the networks and the actors to be made"
                if phase is Phase.STARTING
                else "",
                algorithm=self.algorithm,
                software_version=software_version(),
            )
        experience, progress, _, evaluate = self._steered
        of_actors = experience.actors.status()
        policy_lag_mean, policy_lag_max = progress.recent_lag()
        lags = {"policy_lag_mean": policy_lag_mean, "policy_lag_max": policy_lag_max}
        evaluation = None if evaluate is None else evaluate()
        skips = () if evaluation is None else evaluator_skips(evaluation.evaluations, evaluation.skipped)
        return dataclasses.replace(
            of_actors,
            **(dataclasses.asdict(progress.snapshot()) | lags),
            phase=phase,
            waiting_for="an operator to call Resume" if phase is Phase.PAUSED else of_actors.waiting_for,
            run_dir=str(self._run_dir or ""),
            replay=experience.replay_status(),
            algorithm=self.algorithm,
            evaluation=evaluation,
            findings=(*self._learning(), *skips),
        )

    @property
    def is_over(self) -> bool:
        """True once training has ended; see `rollcast.services.history.service.HistorySource`."""
        return self._phase is Phase.FINISHED

    def history(self, after_s: float | None) -> HistoryUpdate:
        """Returns the history since a time; see `rollcast.services.history.service.HistorySource.history`."""
        # Read first: an end of training that the status does not show yet is then in the next answer.
        status = self.status()
        news = self.run_history.news(after_s)
        return HistoryUpdate(
            now_s=news.now_s,
            run=self._facts if after_s is None else None,
            status=status,
            actors=tuple(self.actors()),
            points=news.points,
            evaluations=news.evaluations,
            lanes=news.lanes,
            events=news.events,
            delays=news.delays,
            curves=news.curves,
        )

    def sample(self) -> None:
        """Adds the current numbers to the run history. A thread calls it once a second."""
        status = self.status()
        self.run_history.sample(
            Sample(
                env_steps=status.env_steps,
                updates=status.updates,
                policy_version=status.policy_version,
                mean_return=status.mean_return,
                episodes=status.episodes,
                queue_size=status.queue_size,
                actors_alive=status.actors_alive,
                replay_size=None if status.replay is None else status.replay.size,
            ),
            is_training=status.phase is not Phase.FINISHED,
        )
