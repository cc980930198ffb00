"""Evaluation beside training: local and remote evaluators, what follows from their reports, and what they survive."""

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from rich.console import Console

from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.commands.train import train
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.policies.saved import read_run_policy
from rollcast.services.status.status import EvaluationStatus
from tests.actor_kinds import make_actors
from tests.processes import completed, ended, free_port, running, status_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("threads_as_before")]

COUNTING = ("--env-id", "tests.environments:CountingEnv")
RETURN_OF_COUNTING = 15.0
SEQUENTIAL = ("--actor-kind", "sequential", "--envs-per-actor", 2, "--n-rollout-steps", 8, "--batch-size", 4)


def trained(run: Path, *options: object) -> tuple[dict[str, Any], str]:
    """Trains in this process; returns the summary, and what was printed."""
    printed, summary = io.StringIO(), run.with_suffix(".json")
    given = ("--address", "localhost:0", "--run-dir", run, "--summary-json", summary, *options)
    assert train(TrainSettings.from_command_line("rollcast train", [str(o) for o in given]), Console(file=printed)) == 0
    return json.loads(summary.read_text()), printed.getvalue()


def evaluations_of(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval/mean_return" in line]


def assert_at_multiples(records: list[dict[str, float]], interval: int, *, n: int) -> None:
    """Each evaluation is of the first update after a multiple, which an update of 32 steps or less never skips."""
    assert [record["env_steps"] // interval for record in records] == list(range(1, n + 1))


def evaluation_at(address: str) -> EvaluationStatus:
    """Returns what the learner says of its evaluators; nothing yet if there is no learner."""
    return status_of(address).evaluation or EvaluationStatus()


def test_policies_are_evaluated_by_steps_and_evaluate_plays_the_same_episodes(tmp_path: Path):
    run = tmp_path / "run"
    options = ("--total-steps", 640, "--eval-interval-steps", 160, "--eval-episodes", 3, "--seed", 7)
    summary, printed = trained(run, *SEQUENTIAL, *options, "--stop-return", 1e9)
    records = evaluations_of(run)
    assert_at_multiples(records, 160, n=4)
    best = max(records, key=lambda record: record["eval/mean_return"])
    saved = read_run_policy(run, "best")
    assert saved.policy_version == best["eval/policy_version"]
    assert saved.mean_return == best["eval/mean_return"] == summary["best_eval_mean_return"]
    assert summary["evaluations"] == 4
    assert summary["eval_mean_return"] == records[-1]["eval/mean_return"]
    assert re.search(r"^evaluation +[\d.]+, best of 4: [\d.]+ \(not solved: 1e\+09\)$", printed, re.MULTILINE)
    figures = tmp_path / "played.json"
    completed("evaluate", run, "--n-episodes", 3, "--seed", 7, "--summary-json", figures)
    assert json.loads(figures.read_text())["mean"] == saved.mean_return


ALTERNATING = ("--env-id", "tests.environments:Alternating", *SEQUENTIAL, "--total-steps", 640)
EVALUATED = ("--eval-interval-steps", 160, "--eval-episodes", 8)


def test_policy_whose_likeliest_actions_loop_is_judged_by_drawn_ones_too_if_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for actions in ("likeliest", "both"):
        run = tmp_path / actions
        trained(run, *ALTERNATING, *EVALUATED, "--eval-actions", actions)
        records = evaluations_of(run)
        assert {record["eval/mean_return"] > 0.9 for record in records} == {actions != "likeliest"}
        if actions == "both":
            assert {record["eval/likeliest_mean_return"] for record in records} == {0.0}
        saved = read_run_policy(run, "best")
        assert (saved.mean_return > 0.9) is (actions != "likeliest")
        assert caplog.text.count("--eval-actions drawn, as training acts") == 1
        figures = tmp_path / f"{actions}.json"
        completed("evaluate", run, "--n-episodes", 8, "--seed", 0, "--summary-json", figures)
        played = json.loads(figures.read_text())
        assert played["mean"] == saved.mean_return, "the run's actions, unless others are asked for"
        assert played["actions"] == ("drawn" if actions == "both" else actions)
    assert read_run_policy(tmp_path / "likeliest", "best").env_steps == 640, "of equal means, that of the last"
    printed = completed("evaluate", tmp_path / "likeliest", "--eval-actions", "both").stdout
    assert re.search(r"actions +greedy\nmean return +0\.0\n(.*\n)*actions +sampled from the policy\n", printed)


def test_return_of_training_ends_it_if_that_is_asked_for(tmp_path: Path):
    options = ("--eval-interval-steps", 1, "--eval-episodes", 1, "--stop-return", RETURN_OF_COUNTING)
    summary, printed = trained(tmp_path / "run", *SEQUENTIAL, *COUNTING, *options, "--stop-on", "train")
    assert summary["solved"] is True
    assert summary["env_steps"] >= 500, "100 episodes"
    assert "(solved: 15 over 100 episodes)" in printed


@pytest.mark.parametrize("kind", ["sequential", "subprocess"])
def test_evaluation_changes_no_bit_of_a_deterministic_run(kind: str, tmp_path: Path):
    options = ("--deterministic", "--actor-kind", kind, "--envs-per-actor", 2, "--n-rollout-steps", 8)
    options += ("--batch-size", 4, "--total-steps", 800, "--stop-return", 1e9, "--seed", 3)
    trained(tmp_path / "without", *options)
    trained(tmp_path / "with", *options, "--eval-interval-steps", 100, "--eval-episodes", 2)
    without, evaluated = (
        safetensors.numpy.load_file(tmp_path / name / "policy_last.safetensors") for name in ("without", "with")
    )
    assert without.keys() == evaluated.keys()
    assert all(array.tobytes() == evaluated[name].tobytes() for name, array in without.items())


def test_killed_evaluator_is_started_again_and_training_goes_on():
    desk = Evaluations(EvaluationPlan(n_episodes=2, seed=0))
    actors = make_actors("subproc-forkserver", evaluations=desk)
    assert isinstance(actors, SubprocDistributedActors)

    def has_evaluated() -> bool:
        actors.collect_outputs("cpu")
        return bool(actors.take_evaluations())

    with actors:
        actors.evaluate_newest(0)
        wait_until(has_evaluated, "the first evaluation")
        evaluator = actors._evaluator
        assert evaluator is not None
        evaluator.processes[0].kill()
        actors.broadcast_updated_policy(actors.policy.state_arrays())
        actors.evaluate_newest(1)

        def is_noted() -> bool:
            actors.collect_outputs("cpu")
            return actors.evaluators.last_error == "signal 9"

        wait_until(is_noted, "its end to be seen")
        wait_until(has_evaluated, "an evaluation by the next process")
        assert actors.evaluators.last_error == ""
        assert actors.n_actors_alive == 2, "evaluators do not count"
        assert [info.actor_id for info in actors.actor_infos] == ["local-0", "local-1"]


def test_evaluator_whose_environment_fails_is_shown_and_training_goes_on(caplog: pytest.LogCaptureFixture):
    desk = Evaluations(EvaluationPlan(n_episodes=2, seed=0))
    actors = make_actors("subproc-forkserver", "tests.environments:FailsWhereItIsEvaluated", evaluations=desk)

    def is_shown() -> bool:
        actors.collect_outputs("cpu")
        return "has lost its licence" in actors.evaluators.last_error

    with actors:
        actors.evaluate_newest(0)
        wait_until(is_shown, "the evaluator's failure")
        wait_until(lambda: "Traceback" in caplog.text, "the reason in the log")
        actors.collect_outputs("cpu")


def test_evaluator_outlives_an_environment_that_training_outlives():
    memory = RunHistory()
    desk = Evaluations(EvaluationPlan(n_episodes=2, seed=0), note=memory.note)
    actors = make_actors(
        "subproc-forkserver", "tests.environments:FailingEnv", evaluations=desk, on_step_failure="drop_episode"
    )
    with actors:
        for n_skipped in (1, 2):
            actors.evaluate_newest(0)

            def is_skipped(n: int = n_skipped) -> bool:
                actors.collect_outputs("cpu")
                return actors.evaluators.skipped == n

            wait_until(is_skipped, "the evaluator's report that it could play nothing")
            assert "the environment raised in each" in actors.evaluators.last_error
            assert actors.evaluators.n_alive == 1
            actors.broadcast_updated_policy(actors.policy.state_arrays())
        assert not [event for event in memory.news(None).events if "has ended:" in event.text], "one process, for both"


def remote(port: int, *options: object) -> tuple[object, ...]:
    return ("actor", "--learner-address", f"127.0.0.1:{port}", *options)


def test_remote_evaluator_follows_a_run_over_a_restart_of_its_learner(tmp_path: Path):
    port = free_port()
    address, run = f"127.0.0.1:{port}", tmp_path / "run"
    started = ("learner", "learner", "--address", address, "--run-dir", run, "--stop-return", 1e9)
    started += ("--eval-interval-s", 0.5, "--eval-episodes", 2, "--envs-per-actor", 4, "--n-rollout-steps", 16)
    started += ("--checkpoint-interval-s", 1)
    with running(*remote(port, "--role", "evaluate", "--actor-id", "judge")) as judge, running(*remote(port)):
        with running(*started) as learner:
            wait_until(lambda: evaluation_at(address).evaluations >= 2, "two evaluations")
            wait_until(lambda: evaluation_at(address).evaluators_alive == 1, "the evaluator to be there")
            wait_until(lambda: status_of(address).actors_alive == 1, "the actor to be there")
            with LearnerClient(address) as client:
                assert len(client.actors()) == 1, "evaluators are no actors"
            wait_until(lambda: any((run / "checkpoints").glob("0*")), "a checkpoint")
            ended(learner, signal.SIGTERM)
        (before, *_) = [record["eval/best_mean_return"] for record in reversed(evaluations_of(run))]
        n_before = len(evaluations_of(run))
        with running("learner", "learner", "--resume", run):
            wait_until(lambda: evaluation_at(address).evaluations > n_before, "an evaluation of the resumed run")
            assert evaluation_at(address).best_mean_return >= before
            assert judge.poll() is None, "the same process all along"
            assert ended(judge, signal.SIGTERM) == 0, judge.stdout.read()
            wait_until(lambda: evaluation_at(address).evaluators_alive == 0, "the evaluator to have gone")
            wait_until(lambda: status_of(address).actors_alive == 1, "training to go on")
