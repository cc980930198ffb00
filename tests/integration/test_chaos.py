"""A short `make chaos`: nothing lost, nothing twice, nothing damaged, nothing hangs."""

from pathlib import Path

import pytest

from tests.chaos.learner_run import Algorithm, run_learner_chaos
from tests.chaos.ranks_run import run_rank_chaos
from tests.chaos.run import run_chaos
from tests.chaos.scaler_run import run_scaler_chaos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_faults_lose_nothing_and_no_actor_is_given_a_wrong_policy_whatever_its_encoding(tmp_path: Path):
    # this seed draws all kinds of short faults but SIGTERM, and damages a policy of each encoding
    report = run_chaos(tmp_path, learner="queue", n_faults=11, n_actors=3, seed=1560, short=True)
    assert report.is_clean, report
    kinds = {recovery.fault.kind for recovery in report.recoveries}
    assert kinds == {"kill", "freeze", "delay", "cut", "half_close", "stall", "flip", "flip_policy"}, report
    assert len(report.recoveries) == 11, report
    assert 0 < report.n_acknowledged <= report.n_rollouts, report
    damaged = {recovery.victim for recovery in report.recoveries if recovery.fault.kind == "flip_policy"}
    assert len(damaged) == 3, report
    for encoding in ("full", "bfloat16", "delta"):
        assert report.notes[f"policies, {encoding}"] > 1, report


def test_faults_lose_nothing_of_a_replay_buffer(tmp_path: Path):
    """Of one with stacks of frames; `make chaos` also has one without."""
    report = run_chaos(tmp_path, learner="frames", n_faults=9, n_actors=3, seed=13, short=True)
    assert report.is_clean, report
    assert len(report.recoveries) == 9, report
    assert len({recovery.fault.kind for recovery in report.recoveries}) > 4, report
    assert 0 < report.n_acknowledged <= report.n_rollouts, report


def test_killed_learner_continues_although_its_newest_checkpoint_is_damaged(tmp_path: Path):
    kinds = ("learner_kill", "flipped_file")
    report = run_learner_chaos(
        tmp_path, algorithm="sac", n_learner_faults=2, n_actor_faults=2, n_actors=2, seed=3, short=True, only=kinds
    )
    assert report.is_clean, report
    assert {recovery.fault.kind for recovery in report.recoveries} >= set(kinds), report
    assert report.notes["lives of the learner"] == 3, report
    assert report.notes["trajectories in its line"] > 0, report


@pytest.mark.parametrize("algorithm", ["impala", "sac"])
def test_killed_durable_learner_loses_nothing_acknowledged(algorithm: Algorithm, tmp_path: Path):
    report = run_learner_chaos(
        tmp_path,
        algorithm=algorithm,
        durable=True,
        n_learner_faults=1,
        n_actor_faults=0,
        n_actors=2,
        seed=5,
        short=True,
        only=("learner_kill",),
    )
    assert report.is_clean, report
    assert report.notes["skipped"] == 0, report
    assert report.notes["lives of the learner"] == 2, report
    assert report.n_acknowledged > 0, report
    assert report.notes["trajectories in its line"] > 0, report


def test_clients_whose_environments_dial_in_lose_only_their_unfinished_step(tmp_path: Path):
    """While clients, their connections, their actor and the learner fail and return."""
    report = run_learner_chaos(
        tmp_path,
        algorithm="impala",
        durable=True,
        n_learner_faults=1,
        n_actor_faults=1,
        n_clients=2,
        n_client_faults=6,
        n_actors=1,
        seed=266,
        short=True,
        only=("learner_kill",),
    )
    assert report.is_clean, report
    kinds = {recovery.fault.kind for recovery in report.recoveries}
    assert kinds == {"learner_kill", "kill", "freeze", "cut", "flip_turn", "flip_actions"}, report
    assert report.notes["lives of the learner"] == 2, report
    assert report.notes["lives of games"] > 3, report


def test_relays_that_fail_beside_their_learner_lose_nothing(tmp_path: Path):
    report = run_learner_chaos(
        tmp_path,
        algorithm="impala",
        durable=True,
        n_learner_faults=1,
        n_actor_faults=0,
        n_relays=2,
        n_relay_faults=2,
        n_actors=3,
        seed=106,
        short=True,
        only=("learner_kill",),
    )
    assert report.is_clean, report
    kinds = {recovery.fault.kind for recovery in report.recoveries}
    assert kinds == {"learner_kill", "kill", "flip"}, report
    assert report.notes["lives of the learner"] == 2, report
    assert report.n_acknowledged > 0, report


def test_a_killed_rank_takes_the_other_with_it_and_both_resume_from_one_checkpoint(tmp_path: Path):
    report = run_rank_chaos(
        tmp_path, n_rank_faults=1, n_actor_faults=1, n_actors=2, seed=5, short=True, only=("learner_kill",)
    )
    assert report.is_clean, report
    assert report.notes["lives of the ranks"] >= 4, report
    assert report.notes["policies of both ranks"] > 0, report
    assert report.n_acknowledged > 0, report


def test_a_scaler_that_fails_with_its_learner_wants_no_fewer_actors(tmp_path: Path):
    # this seed kills both at the same time, and then freezes both
    report = run_scaler_chaos(tmp_path, n_scaler_faults=3, n_learner_faults=2, n_actors=4, seed=936, short=True)
    assert report.is_clean, report
    kinds = [recovery.fault.kind for recovery in report.recoveries]
    assert kinds == ["learner_kill", "learner_freeze", "kill", "freeze", "cut"], report
    assert report.notes["actors"] == 4, report
    assert report.n_acknowledged > 0, report
