import threading
from pathlib import Path

import pytest

from rollcast.learner.experience.experience import FreshExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.training.control import TrainingControl
from rollcast.services.errors import NotReadyError, RefusedError
from rollcast.services.history.history import RunFacts
from rollcast.services.status.status import EvaluationStatus, LearningFinding, Phase
from tests.actor_kinds import make_actors
from tests.processes import DEADLINE_S


def attached(save=None) -> TrainingControl:
    control = TrainingControl(algorithm="impala", run_dir=Path("runs/x"))
    control.attach(FreshExperience(make_actors("sequential")), TrainingProgress(), save)
    control.enter(Phase.TRAINING)
    return control


def test_status_before_anything_is_there():
    status = TrainingControl(algorithm="impala", run_dir=None).status()
    assert status.phase is Phase.STARTING
    assert "networks" in status.waiting_for


def test_the_status_of_an_algorithm_without_a_buffer_has_none():
    status = attached().status()
    assert status.replay is None
    assert (status.duplicate_rollouts, status.rejected_rollouts, status.stale_trajectories) == (0, 0, 0)


def test_the_status_has_what_is_not_healthy_and_an_evaluator_that_skips_most():
    told = LearningFinding("critic-clipped", "the critic is far off", "try --ppo.normalize-rewards")
    control = TrainingControl(algorithm="ppo", run_dir=None, learning=lambda: (told,))
    assert control.status().findings == ()
    evaluation = EvaluationStatus(evaluators_alive=1, evaluations=3, skipped=4)
    control.attach(FreshExperience(make_actors("sequential")), TrainingProgress(), None, lambda: evaluation)
    assert [finding.rule for finding in control.status().findings] == ["critic-clipped", "evaluator-skips"]


def test_no_update_starts_while_paused_and_pausing_waits_for_the_running_one():
    control = attached()
    updating, finish, paused = threading.Event(), threading.Event(), threading.Event()
    turns = []

    def train() -> None:
        for turn in range(2):
            with control.update_turn():
                turns.append(turn)
                updating.set()
                finish.wait(DEADLINE_S)

    trainer = threading.Thread(target=train)
    trainer.start()
    assert updating.wait(DEADLINE_S)
    pauser = threading.Thread(target=lambda: (control.pause(), paused.set()))
    pauser.start()
    assert not paused.wait(0.1), "the update is still running"
    finish.set()
    assert paused.wait(DEADLINE_S)
    assert turns == [0]
    assert control.status().phase is Phase.PAUSED
    assert "Resume" in control.status().waiting_for
    control.resume()
    trainer.join(DEADLINE_S)
    pauser.join(DEADLINE_S)
    assert turns == [0, 1]


def test_a_stop_ends_a_pause():
    control = attached()
    control.pause()
    control.request_stop()
    with control.update_turn():
        pass
    assert control.stop_requested


def test_pausing_what_has_ended_is_refused():
    control = attached()
    control.enter(Phase.STOPPING)
    with pytest.raises(RefusedError, match="stopping"):
        control.pause()


def test_checkpoints_are_written_between_updates():
    updated = threading.Event()

    def save(between_updates):
        with between_updates():
            # cannot begin
            trainer.start()
            assert not updated.wait(0.1)
        assert updated.wait(DEADLINE_S), "training goes on while it is being written"
        return Path("runs/x/checkpoints/00000003"), 4

    control = attached(save)

    def train() -> None:
        with control.update_turn():
            updated.set()

    trainer = threading.Thread(target=train)
    assert control.save_checkpoint() == ("runs/x/checkpoints/00000003", 4)
    trainer.join(DEADLINE_S)


def test_checkpoints_need_a_directory_and_a_start():
    with pytest.raises(RefusedError, match="--run-dir"):
        attached().save_checkpoint()
    with pytest.raises(NotReadyError, match="not started"):
        TrainingControl(algorithm="impala", run_dir=None).save_checkpoint()


def test_the_history_has_the_run_at_first_and_what_operators_did_once():
    facts = RunFacts(env_id="CartPole-v1", seed=3, stop_return=475.0)
    control = TrainingControl(algorithm="impala", run_dir=Path("runs/x"), facts=facts, max_policy_lag=2)
    control.attach(FreshExperience(make_actors("sequential")), TrainingProgress(), None)
    control.enter(Phase.TRAINING)
    first = control.history(None)
    assert first.run is not None
    assert (first.run.env_id, first.run.seed, first.run.stop_return) == ("CartPole-v1", 3, 475.0)
    assert (first.run.algorithm, first.run.run_dir) == ("impala", "runs/x")
    assert first.delays.max_policy_lag == 2
    for _ in range(2):
        control.pause()
    for _ in range(2):
        control.resume()
    second = control.history(first.now_s)
    assert second.run is None
    assert [event.text for event in second.events] == [
        "an operator has paused training",
        "an operator has resumed training",
    ]
    assert second.status.phase is Phase.TRAINING
    assert control.history(second.now_s).events == ()
    assert not control.is_over
    control.enter(Phase.FINISHED)
    assert control.is_over


def test_a_history_before_training_has_the_run_and_its_phase():
    control = TrainingControl(algorithm="impala", run_dir=None)
    control.sample()
    update = control.history(None)
    assert (update.status.phase, update.actors) == (Phase.STARTING, ())
    assert update.run is not None
