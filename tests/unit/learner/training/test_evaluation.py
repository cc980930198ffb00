"""The schedule of evaluations, the best policy among them, and the end of patience."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.playing.evaluate import summarize
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.experience.experience import Experience, FreshExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.serving.evaluations import EvaluatedPolicy, EvaluationResult, EvaluatorsInfo
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.evaluation import TrainingEvaluation
from rollcast.learner.training.schedule import EvaluationSchedule, TrainingSchedule
from rollcast.learner.training.trainer import Trainer
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.evaluation import EvaluationActions
from rollcast.services.policies.policies import PolicyState
from tests.actor_kinds import make_policy_for

FACTORY = EnvironmentFactory("tests.environments:CountingEnv")


class Offered(SequentialDistributedActors):
    """Actors that note what they are to evaluate, and report what a test says."""

    def __init__(self) -> None:
        super().__init__(FACTORY, make_policy_for(FACTORY), 2, 1, 1)
        self.offered: list[tuple[int, int]] = []
        self.results: list[EvaluationResult] = []
        self.version = 1

    @property
    def policy_version(self) -> int:
        return self.version

    def evaluate_newest(self, env_steps: int, opponents: Mapping[int, PolicyState]) -> None:
        self.offered.append((self.version, env_steps))
        self.opponents = tuple(opponents)

    def take_evaluations(self) -> Sequence[EvaluationResult]:
        taken, self.results = self.results, []
        return taken


class Late(Offered):
    """Actors whose evaluator has a report for whoever has seen it at work."""

    @property
    def evaluators(self) -> EvaluatorsInfo:
        is_at_work = not self.results
        policy = EvaluatedPolicy(version=1, env_steps=2, state={})
        played = {EvaluationActions.LIKELIEST: summarize((15.0,), (5,))}
        self.results = [EvaluationResult(policy=policy, played=played, seconds=1.5)]
        return EvaluatorsInfo(n_pending=int(is_at_work))


class Training:
    """Updates of ten steps each, with an evaluation beside them."""

    def __init__(self, run_dir: Path | None = None, **schedule: object) -> None:
        self.actors, self.progress = Offered(), TrainingProgress()
        given = {"interval_s": None, "interval_steps": None}
        self.run_history = RunHistory()
        self.evaluation = TrainingEvaluation(
            self.actors,
            self.progress,
            EvaluationSchedule(**(given | schedule)),
            self.actors.policy,
            run_dir=run_dir,
            run_history=self.run_history,
        )

    def update(self, times: int = 1, steps: int = 10, returns: Sequence[float] = ()) -> None:
        for _ in range(times):
            self.progress.record(
                Experience(
                    batch=None,
                    env_steps=steps,
                    n_episodes=len(returns),
                    returns=tuple(returns),
                    policy_lag=np.zeros(0, np.int64),
                    waited_s=0.0,
                )
            )
            self.actors.version += 1
            self.evaluation.offer_due()

    def report(self, version: int, *returns: float, drawn: Sequence[float] = ()) -> dict[str, float]:
        policy = EvaluatedPolicy(version=version, env_steps=10 * version, state={})
        by_kind = {EvaluationActions.LIKELIEST: returns, EvaluationActions.DRAWN: tuple(drawn)}
        played = {kind: summarize(of_kind, (5,) * len(of_kind)) for kind, of_kind in by_kind.items() if of_kind}
        self.actors.results.append(EvaluationResult(policy=policy, played=played, seconds=1.5))
        ((env_steps, values),) = self.evaluation.take()
        assert env_steps == 10 * version
        return values


def test_evaluations_are_remembered_with_whether_they_are_the_best():
    training = Training(interval_steps=10)
    for version, mean in ((2, 1.0), (3, 3.0), (4, 3.0), (5, 2.0)):
        training.report(version, mean - 1.0, mean + 1.0)
    news = training.run_history.news(None)
    assert [(one.policy_version, one.env_steps, one.mean_return, one.best) for one in news.evaluations[:3]] == [
        (2, 20, 1.0, True),
        (3, 30, 3.0, True),
        (4, 40, 3.0, True),
    ]
    assert all(one.ci_low < one.mean_return < one.ci_high for one in news.evaluations)
    assert [event.text for event in news.events] == [
        "version 2 was evaluated: mean return 1 with greedy actions, the best so far",
        "version 3 was evaluated: mean return 3 with greedy actions, the best so far",
        "version 4 was evaluated: mean return 3 with greedy actions, as good as the best before",
        "version 5 was evaluated: mean return 2 with greedy actions, no better than before",
    ]


def test_first_update_after_each_multiple_of_the_interval_is_evaluated():
    training = Training(interval_steps=25)
    training.update(10)
    assert training.actors.offered == [(4, 30), (6, 50), (9, 80), (11, 100)]
    training.update(steps=1000)
    assert training.actors.offered[4:] == [(12, 1100)], "once, however many multiples an update passes"


def test_interval_in_seconds_begins_with_training(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("rollcast.learner.training.evaluation.time.monotonic", lambda: now)
    training = Training(interval_s=5.0)
    training.update()
    assert training.actors.offered == []
    now = 105.0
    training.update(2)
    assert training.actors.offered == [(3, 20)]
    now = 111.0
    training.update(2)
    assert training.actors.offered == [(3, 20), (5, 40)]


def test_run_out_of_steps_waits_for_the_evaluation_under_way():
    actors, evaluation = Late(), EvaluationSchedule(interval_s=None, interval_steps=1)
    trainer = Trainer(
        FreshExperience(actors),
        Impala(actors.policy.spaces, actors.policy.spec, ImpalaSettings()),
        TrainingControl(algorithm="impala", run_dir=None),
        TrainingSchedule(total_steps=1, stop_return=15.0, evaluation=evaluation),
        device=torch.device("cpu"),
    )
    summary = trainer.run()
    assert actors.offered == [(1, 2)]
    assert (summary.updates, summary.evaluations, summary.solved) == (1, 1, True)


def test_policy_that_was_evaluated_is_not_evaluated_again():
    training = Training(interval_steps=10)
    training.update()
    training.actors.version = 1
    training.update()
    assert training.actors.offered == [(2, 10)], "no newer policy was cast"


def test_metrics_have_mean_interval_and_best():
    training = Training(interval_steps=10)
    values = training.report(2, 1.0, 2.0, 3.0)
    # 4.303 is the 97.5 % quantile of Student's t with two degrees of freedom
    margin = 4.303 / math.sqrt(3)
    assert values == pytest.approx(
        {
            "eval/mean_return": 2.0,
            "eval/ci_low": 2.0 - margin,
            "eval/ci_high": 2.0 + margin,
            "eval/std": 1.0,
            "eval/mean_length": 5.0,
            "eval/best_mean_return": 2.0,
            "eval/policy_version": 2,
            "eval/evaluations": 1,
            "eval/skipped": 0,
            "eval/seconds": 1.5,
        }
    )
    assert training.report(3, 1.0)["eval/best_mean_return"] == 2.0


def test_best_policy_is_the_one_with_the_highest_mean_and_of_equal_ones_the_last():
    training = Training(interval_steps=10)
    for version, mean_return in ((1, 3.0), (2, 5.0), (3, 5.0), (4, 4.0)):
        training.report(version, mean_return)
    best = training.evaluation.unwritten
    assert best is not None
    assert (best.policy_version, best.mean_return, best.env_steps) == (3, 5.0, 30)
    training.evaluation.note_written()
    assert training.evaluation.unwritten is None
    assert training.evaluation.mean_return == 4.0


def test_the_better_of_both_kinds_of_actions_counts_and_both_means_are_written():
    training = Training(interval_steps=10)
    values = training.report(2, 1.0, 3.0, drawn=(4.0, 6.0))
    assert values["eval/mean_return"] == values["eval/drawn_mean_return"] == values["eval/best_mean_return"] == 5.0
    assert values["eval/likeliest_mean_return"] == 2.0
    (event,) = training.run_history.news(None).events
    assert event.text == (
        "version 2 was evaluated: mean return 2 with greedy actions and 5 with drawn ones, the best so far"
    )
    assert training.report(3, 7.0, drawn=(5.0,))["eval/mean_return"] == 7.0


def test_policies_are_rated_by_their_games_and_play_against_those_before():
    training = Training(interval_steps=10, n_opponents=1)
    found = []
    for version, against in (
        (2, {0: (1.0, 1.0)}),
        (3, {0: (1.0, 1.0), 2: (0.0, -2.0)}),
        (4, {0: (1.0, -1.0), 2: (-1.0,)}),
    ):
        training.update()
        played = {opponent: summarize(margins, (5,) * len(margins)) for opponent, margins in against.items()}
        policy = EvaluatedPolicy(version=version, env_steps=10 * version, state={}, opponents=tuple(against)[1:])
        training.actors.results.append(EvaluationResult(policy=policy, played={}, seconds=1.5, against=played))
        ((_, values),) = training.evaluation.take()
        found.append(values)
    training.update()
    assert training.actors.opponents == (2, 4), "the first one, and the last"
    ratings = [values["eval/mean_return"] for values in found]
    assert ratings[0] == pytest.approx(400 * math.log10(5), abs=1e-6), "2.5 points of 3"
    assert ratings[2] < ratings[1] < ratings[0]
    assert [values.get("eval/score_random") for values in found] == [1.0, 1.0, 0.5]
    assert [values.get("eval/score_first") for values in found] == [None, 0.25, 0.0]
    best = training.evaluation.unwritten
    assert best is not None
    assert (best.policy_version, best.mean_return) == (2, ratings[0]), "the best goes by the rating"
    assert training.run_history.news(None).events[0].text == (
        f"version 2 was evaluated: rating {ratings[0]:.0f} from games against 1 opponents, the best so far"
    )


def warnings_of(training: Training) -> list[str]:
    return [event.text for event in training.run_history.news(None).events if event.severity is EventSeverity.WARNING]


def test_evaluation_that_falls_short_of_training_is_explained_once_until_it_no_longer_does():
    training = Training(interval_steps=10)
    training.update(returns=[0.7, 0.9] * 10)
    training.report(2, 0.0, 0.0)
    (warning,) = warnings_of(training)
    assert warning.startswith(
        "version 2 earns 0.0 with greedy actions (standard deviation 0.0), and training earned 0.8 with drawn ones"
    )
    assert "--eval-actions drawn" in warning
    training.update()
    training.report(3, 0.0, 0.0)
    assert len(warnings_of(training)) == 1
    training.update(2)
    training.report(4, 0.6, 0.8)
    training.report(5, 0.0, 0.0)
    assert len(warnings_of(training)) == 2


@pytest.mark.parametrize(
    ("trained", "likeliest", "drawn"),
    [
        ([0.7, 0.9] * 9, (0.0, 0.0), ()),  # too few episodes
        ([0.0, 2.0] * 20, (0.0, 0.5), ()),  # within the deviations
        ([0.0, 0.1] * 20, (5.0, 5.0), ()),  # better than training, which explores
        ([0.7, 0.9] * 10, (0.0, 0.0), (0.0, 0.1)),  # both kinds are shown
    ],
)
def test_evaluation_that_does_not_fall_short_of_training_needs_no_explanation(
    trained: list[float], likeliest: tuple[float, ...], drawn: tuple[float, ...]
):
    training = Training(interval_steps=10)
    training.update(returns=trained)
    training.report(2, *likeliest, drawn=drawn)
    assert warnings_of(training) == []


def test_returns_of_training_after_a_policy_was_due_say_nothing_about_it():
    training = Training(interval_steps=10)
    training.update(returns=[0.0, 0.1] * 10)
    training.update(returns=[8.0, 9.0] * 50)
    training.report(2, 0.0, 0.1)
    assert warnings_of(training) == []


def test_patience_ends_after_so_many_evaluations_without_a_better_mean():
    training = Training(interval_steps=10, patience=2)
    outs = []
    for version, mean_return in enumerate((3.0, 1.0, 4.0, 4.0, 2.0), start=1):
        training.report(version, mean_return)
        outs.append(training.evaluation.is_out_of_patience)
    assert outs == [False, False, False, False, True]


def test_resumed_run_keeps_what_was_evaluated():
    training = Training(interval_steps=25, patience=2)
    training.update(4)
    training.report(4, 3.0)
    training.evaluation.note_written()
    training.report(5, 2.0)
    resumed = Training(interval_steps=25, patience=2)
    resumed.progress.load_state(training.progress.state())
    resumed.evaluation.load_state(json.loads(json.dumps(training.evaluation.state(), allow_nan=False)))
    assert resumed.evaluation.status() == training.evaluation.status()
    resumed.actors.version = 5
    resumed.update()
    assert resumed.actors.offered == [(6, 50)], "the next multiple, as without the interruption"
    resumed.report(6, 1.0)
    assert resumed.evaluation.is_out_of_patience, "evaluations before the interruption count"


def test_resumed_run_plays_against_the_opponents_of_before(tmp_path: Path):
    training, resumed = (Training(tmp_path, interval_steps=10, n_opponents=1) for _ in range(2))
    for version in (2, 3, 4):
        training.update()
        state = training.actors.policy.state_arrays()
        policy = EvaluatedPolicy(version=version, env_steps=10 * version, state=state)
        against = {0: summarize((1.0,), (5,))}
        training.actors.results.append(EvaluationResult(policy=policy, played={}, seconds=1.5, against=against))
        training.evaluation.take()
    resumed.progress.load_state(training.progress.state())
    resumed.evaluation.load_state(json.loads(json.dumps(training.evaluation.state(), allow_nan=False)))
    resumed.actors.version = training.actors.version
    resumed.update()
    assert resumed.actors.opponents == (2, 4), "the first one, and the last"


def test_resumed_run_that_is_out_of_patience_says_so(caplog: pytest.LogCaptureFixture):
    training = Training(interval_steps=10, patience=1)
    training.report(2, 5.0)
    training.evaluation.note_written()
    training.report(3, 4.0)
    caplog.clear()
    Training(interval_steps=10, patience=2).evaluation.load_state(training.evaluation.state())
    assert not caplog.records
    Training(interval_steps=10, patience=1).evaluation.load_state(training.evaluation.state())
    assert "1 evaluations in a row brought no better mean return than 5" in caplog.text
    assert "raise --eval-patience" in caplog.text


def test_checkpoint_keeps_no_best_policy_that_is_not_on_the_disk():
    training = Training(interval_steps=10)
    training.report(2, 3.0)
    training.evaluation.note_written()
    training.report(3, 9.0)
    resumed = Training(interval_steps=10)
    resumed.evaluation.load_state(training.evaluation.state())
    assert resumed.evaluation.status().best_policy_version == 2
    resumed.report(4, 8.0)
    assert resumed.evaluation.unwritten is not None
