"""Evaluates policies during training: chooses due policies, keeps the best, and detects when returns stop rising."""

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from rollcast.actor.playing.evaluate import Evaluation
from rollcast.actor.policies.heads import Q_HEADS
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.serving.evaluations import EvaluationResult
from rollcast.learner.training.opponents import RANDOM, Opponents, Rating, score
from rollcast.learner.training.schedule import EvaluationSchedule
from rollcast.learner.writers import metric_names
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.evaluation import EvaluationActions
from rollcast.services.policies.policies import SavedPolicy
from rollcast.services.status.numbers import decimal
from rollcast.services.status.status import EvaluationStatus

logger = logging.getLogger(__name__)

# The number of training episodes that are necessary for a comparison.
_MIN_EPISODES: Final = 20

_WORDS: Final = {EvaluationActions.LIKELIEST: "greedy actions", EvaluationActions.DRAWN: "drawn ones"}
_MEAN_RETURNS: Final = {
    EvaluationActions.LIKELIEST: metric_names.EVAL_LIKELIEST_MEAN_RETURN,
    EvaluationActions.DRAWN: metric_names.EVAL_DRAWN_MEAN_RETURN,
}

# The fields of the status that a checkpoint keeps.
_KEPT: Final = (
    *("evaluations", "policy_version", "env_steps", "mean_return", "ci_low", "ci_high"),
    *("best_policy_version", "best_mean_return", "without_improvement"),
)


class TrainingEvaluation:
    """The evaluation of a run's policies, and the best policy. The trainer's thread calls all methods but `status`.

    The best policy has the highest mean return. Of equal policies, the best is the last, which has learnt longest.

    Args:
        actors: The actors, with the evaluators of the newest policy.
        progress: The progress of training.
        schedule: Decides which policies are due.
        policy: The policy in training, for its architecture and spaces.
        run_history: Records the evaluations; None: no recording.
        run_dir: The run's folder, with the opponents; None: they are not stored.

    Attributes:
        schedule: See Args.
        unwritten: The best policy if it is better than the one on the disk; else None.
    """

    def __init__(
        self,
        actors: DistributedActors,
        progress: TrainingProgress,
        schedule: EvaluationSchedule,
        policy: TorchPolicy,
        *,
        run_history: RunHistory | None = None,
        run_dir: Path | None = None,
    ) -> None:
        self._opponents = None
        if schedule.n_opponents is not None:
            folder = None if run_dir is None else run_dir / "opponents"
            self._opponents = Opponents(schedule.n_opponents, policy.spec, folder)
        self._run_history = run_history
        self.schedule = schedule
        self.unwritten: SavedPolicy | None = None
        self._actors = actors
        self._progress = progress
        self._policy = policy
        self._next_s = time.monotonic() + (schedule.interval_s or 0.0)
        self._next_step = schedule.interval_steps or 0
        self._last_version = 0
        # The training returns when a policy became due, by its version.
        self._returns_when_due: dict[int, tuple[float, ...]] = {}
        self._differs = False  # whether the last evaluation fell short of training
        self._lock = threading.Lock()  # guards the two below
        self._status = EvaluationStatus()
        # Version and mean return of the best policy on the disk.
        self._written = (0, 0.0)

    @property
    def mean_return(self) -> float | None:
        """The mean return of the newest evaluation; None before the first."""
        status = self._status
        return status.mean_return if status.evaluations else None

    @property
    def is_out_of_patience(self) -> bool:
        """True once a given number of consecutive evaluations brought no better mean return."""
        patience = self.schedule.patience
        return patience is not None and self._status.without_improvement >= patience

    def status(self) -> EvaluationStatus:
        """Returns the results of evaluations. Thread-safe."""
        evaluators = self._actors.evaluators
        with self._lock:
            return dataclasses.replace(
                self._status,
                evaluators_alive=evaluators.n_alive,
                skipped=evaluators.skipped,
                last_error=evaluators.last_error,
            )

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. The best policy in the state is the one on the disk. Thread-safe.

        An infinite confidence interval, from a single episode, is omitted.
        """
        with self._lock:
            status, (version, mean_return) = self._status, self._written
        status = dataclasses.replace(status, best_policy_version=version, best_mean_return=mean_return)
        kept = {name: getattr(status, name) for name in _KEPT}
        opponents = {} if self._opponents is None else {"opponents": self._opponents.state()}
        finite = {name: value for name, value in kept.items() if math.isfinite(value)}
        return finite | {"next_step": self._next_step} | opponents

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from an earlier `state`, whose best policy is on the disk. Call it before training starts."""
        kept = {name: state[name] for name in _KEPT if name in state}
        status = EvaluationStatus(**({"ci_low": -math.inf, "ci_high": math.inf} | kept))
        if self.schedule.interval_steps is not None:
            # Not before the next multiple of the interval, which may have changed.
            self._next_step = min(int(state["next_step"]), self._first_multiple_above(self._progress.env_steps))
        with self._lock:
            self._status = status
            self._written = status.best_policy_version, status.best_mean_return
        self._last_version = status.policy_version
        if self._opponents is not None:
            self._opponents.load_state(state.get("opponents", {}))
        self._tell_patience()

    def offer_due(self) -> None:
        """Requests an evaluation of the newest policy if it is due. Called after every update; never waits."""
        if self._actors.policy_version <= self._last_version:
            return
        every_s, every_step = self.schedule.interval_s, self.schedule.interval_steps
        env_steps = self._progress.env_steps
        if every_step is not None:
            if env_steps < self._next_step:
                return
            # The first update after each multiple, however many steps an update has.
            self._next_step = self._first_multiple_above(env_steps)
        elif every_s is not None:
            now = time.monotonic()
            if now < self._next_s:
                return
            self._next_s = now + every_s
        self._last_version = self._actors.policy_version
        self._returns_when_due[self._last_version] = self._progress.recent_returns()
        self._actors.evaluate_newest(env_steps, {} if self._opponents is None else self._opponents.states)

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """Takes the results that have arrived.

        Returns:
            For each result, the environment steps when its policy was due, and its metrics by tag.
        """
        return [(result.policy.env_steps, self._take(result)) for result in self._actors.take_evaluations()]

    def note_written(self) -> None:
        """Records that the best policy was written."""
        self.unwritten = None
        self._written = self._status.best_policy_version, self._status.best_mean_return

    def _tell_patience(self) -> None:
        """Logs that training ends because returns no longer improve, if it does."""
        status = self._status
        if self.is_out_of_patience:
            logger.warning(
                "%d evaluations in a row brought no better mean return than %s, of version %d: training ends; raise "
                "--eval-patience to continue",
                status.without_improvement,
                decimal(status.best_mean_return),
                status.best_policy_version,
            )

    def _first_multiple_above(self, env_steps: int) -> int:
        every = self.schedule.interval_steps or 1
        return (env_steps // every + 1) * every

    def _to_save(self, result: EvaluationResult, mean_return: float) -> SavedPolicy:
        return SavedPolicy(
            spec=self._policy.spec,
            state=result.policy.state,
            policy_version=result.policy.version,
            env_steps=result.policy.env_steps,
            mean_return=mean_return,
            spaces=self._policy.spaces,
        )

    def _remember(
        self, result: EvaluationResult, counted: Rating, run_history: RunHistory, *, is_best: bool, is_better: bool
    ) -> None:
        policy = result.policy
        run_history.evaluated(
            env_steps=policy.env_steps,
            policy_version=policy.version,
            mean_return=counted.value,
            interval=(counted.low, counted.high),
            best=is_best,
        )
        means = [f"{decimal(one.mean)} with {_WORDS[kind]}" for kind, one in result.played.items()]
        outcome = (
            "the best so far" if is_better else "as good as the best before" if is_best else "no better than before"
        )
        found = f"mean return {' and '.join(means)}"
        if result.against:
            found = f"rating {counted.value:.0f} from games against {len(result.against)} opponents"
        run_history.note(EventSeverity.INFO, f"version {policy.version} was evaluated: {found}, {outcome}")

    def _compare_with_training(self, result: EvaluationResult) -> None:
        """Warns if greedy actions fall short of training by more than both standard deviations.

        Warns once, until an evaluation is as good as training again. A policy of learnt values has no drawn actions.
        """
        training = self._returns_when_due.pop(result.policy.version, ())
        self._returns_when_due = {v: kept for v, kept in self._returns_when_due.items() if v > result.policy.version}
        if tuple(result.played) != (EvaluationActions.LIKELIEST,) or self._policy.spec.head in Q_HEADS:
            return
        played, differed = result.evaluation, self._differs
        if len(training) >= _MIN_EPISODES:
            self._differs = played.mean + played.std < fmean(training) - stdev(training)
        if self._differs and not differed:
            text = (
                f"version {result.policy.version} earns {decimal(played.mean)} with greedy actions (standard deviation "
                f"{decimal(played.std)}), and training earned {decimal(fmean(training))} with drawn ones (standard "
                f"deviation {decimal(stdev(training))}): greedy actions may repeat without end; evaluate with "
                "--eval-actions drawn, as training acts, or compare the two with --eval-actions both"
            )
            logger.warning("%s", text)
            if self._run_history is not None:
                self._run_history.note(EventSeverity.WARNING, text)

    def _counted(self, result: EvaluationResult) -> Rating:
        """Returns the number that ranks a policy: its mean return, or its rating. Keeps it as an opponent."""
        played, policy, opponents = result.evaluation, result.policy, self._opponents
        if opponents is None:
            return Rating(played.mean, *played.confidence_interval)
        rating = opponents.rate(result.against)
        try:
            opponents.keep(policy.version, policy.state, rating.value, policy.env_steps)
        except OSError as error:
            logger.error("version %d cannot be an opponent after a resume: %s", policy.version, error)  # noqa: TRY400  # the message says it all
        return rating

    def _scores(self, against: Mapping[int, Evaluation]) -> dict[str, float]:
        """Returns the mean scores against random play, the first policy and the others, by tag."""
        scores = {version: fmean(map(score, games.returns)) for version, games in against.items()}
        first = min(scores.keys() - {RANDOM}, default=RANDOM)
        earlier = [value for version, value in scores.items() if version not in (RANDOM, first)]
        return {
            tag: value
            for tag, value in (
                (metric_names.EVAL_SCORE_RANDOM.tag, scores.get(RANDOM)),
                (metric_names.EVAL_SCORE_FIRST.tag, scores.get(first) if first != RANDOM else None),
                (metric_names.EVAL_SCORE_EARLIER.tag, fmean(earlier) if earlier else None),
            )
            if value is not None
        }

    def _take(self, result: EvaluationResult) -> dict[str, float]:
        before, played, policy = self._status, result.evaluation, result.policy
        counted = self._counted(result)
        is_first = not before.best_policy_version
        is_best = is_first or counted.value >= before.best_mean_return
        is_better = is_first or counted.value > before.best_mean_return
        if is_best:
            self.unwritten = self._to_save(result, counted.value)
        now = dataclasses.replace(
            before,
            evaluations=before.evaluations + 1,
            policy_version=policy.version,
            env_steps=policy.env_steps,
            mean_return=counted.value,
            ci_low=counted.low,
            ci_high=counted.high,
            best_policy_version=policy.version if is_best else before.best_policy_version,
            best_mean_return=counted.value if is_best else before.best_mean_return,
            without_improvement=0 if is_better else before.without_improvement + 1,
        )
        with self._lock:
            self._status = now
        if self._run_history is not None:
            self._remember(result, counted, self._run_history, is_best=is_best, is_better=is_better)
        self._compare_with_training(result)
        self._tell_patience()
        by_kind = {_MEAN_RETURNS[kind].tag: one.mean for kind, one in result.played.items()}
        return {
            **(by_kind if len(by_kind) > 1 else {}),
            **self._scores(result.against),
            metric_names.EVAL_MEAN_RETURN.tag: counted.value,
            metric_names.EVAL_CI_LOW.tag: counted.low,
            metric_names.EVAL_CI_HIGH.tag: counted.high,
            metric_names.EVAL_STD.tag: played.std,
            metric_names.EVAL_MEAN_LENGTH.tag: sum(played.lengths) / len(played.lengths),
            metric_names.EVAL_BEST_MEAN_RETURN.tag: now.best_mean_return,
            metric_names.EVAL_POLICY_VERSION.tag: policy.version,
            metric_names.EVAL_EVALUATIONS.tag: now.evaluations,
            metric_names.EVAL_SKIPPED.tag: self._actors.evaluators.skipped,
            metric_names.EVAL_SECONDS.tag: result.seconds,
        }
