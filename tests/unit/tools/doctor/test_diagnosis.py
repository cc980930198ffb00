import re

import pytest

from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Throttled
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import (
    ActorInfo,
    ActorState,
    EvaluationStatus,
    LearnerStatus,
    LearningFinding,
    Phase,
)
from rollcast.tools.doctor.diagnosis import Severity, diagnose
from tests.histories import replay_status


def status_of(**changes):
    healthy = {
        "phase": Phase.TRAINING,
        "updates": 100,
        "waiting_fraction": 0.2,
        "actors_alive": 2,
        "software_version": "1.0",
        "queue_size": 1,
        "queue_capacity": 64,
    }
    return LearnerStatus(**(healthy | changes))


def actor(name, **changes):
    healthy = {"slot": 0, "incarnation": 1, "state": ActorState.STREAMING, "idle_s": 0.5, "software_version": "1.0"}
    return ActorInfo(actor_id=name, **(healthy | changes))


def replay_waiting(seconds):
    waiting = (ReplayWaiting(reason="an insertion of 16 waits for 100 samples", seconds=seconds, who="the actors"),)
    return replay_status(waiting=waiting)


def found(status, actors=()):
    return [(finding.severity, finding.what) for finding in diagnose(status, actors, own_version="1.0")]


def test_healthy_learner_has_no_findings():
    assert found(status_of(), [actor("a"), actor("b", slot=1)]) == []


@pytest.mark.parametrize(
    ("status", "actors", "severity", "what"),
    [
        (status_of(phase=Phase.PAUSED, waiting_s=90.0), (), "wrong", "training has been paused for 90 s"),
        (status_of(phase=Phase.STARTING, waiting_for="the first actor"), (), "wrong", "has not begun.*the first actor"),
        (status_of(waiting_for="an actor to join", waiting_s=44.0), (), "wrong", "waited 44 s for an actor to join"),
        (
            status_of(replay=replay_waiting(12.0)),
            (),
            "wrong",
            "the actors has waited 12 s at the replay buffer",
        ),
        (status_of(), [actor("a", state=ActorState.LOST, last_error="boom")], "wrong", r"a \(slot 0\) is lost.*: boom"),
        (status_of(), [actor("a", state=ActorState.REFUSED, last_error="NaN")], "wrong", r"is refused.*: NaN"),
        (status_of(), [actor("a", state=ActorState.FAILED), actor("b")], "note", "is failed.*; it gave no reason"),
        (status_of(actors_expected=4), (), "wrong", "2 of 4 actors are alive"),
        (
            status_of(),
            [actor("a", idle_s=40.0, peer="10.0.0.7"), actor("b")],
            "wrong",
            "a at 10.0.0.7 .* for 40",
        ),
        (status_of(rejected_rollouts=3), (), "wrong", "3 rollouts were refused"),
        (status_of(dropped_episodes=1000), (), "note", "1,000 episodes were dropped"),
        (status_of(dropped_episodes=1, episodes=1), (), "note", "^1 episode was dropped, 1 has ended"),
        (status_of(stale_trajectories=1000), (), "note", "1,000 trajectories were dropped as stale"),
        (
            status_of(throttled=(Throttled(who="10.0.0.7", limit="max_streams", times=3, idle_s=5.0),)),
            (),
            "note",
            r"^10\.0\.0\.7 met the limit max_streams 3 times, last 5 s ago",
        ),
        (
            status_of(),
            [actor("a", software_version="0.9")],
            "note",
            "rollcast 1.0, others run another version: actor a 0.9",
        ),
        (
            status_of(waiting_fraction=0.8),
            (),
            "note",
            "has waited 80% of the run: the actors are slower than the learner",
        ),
        (status_of(waiting_fraction=0.01, queue_capacity=1), (), "note", r"queue is full \(1 trajectory\)"),
    ],
)
def test_each_problem_gives_exactly_its_own_finding(status, actors, severity, what):
    (finding,) = diagnose(status, actors, own_version="1.0")
    assert finding.severity is Severity(severity)
    assert finding.advice
    assert re.search(what, finding.what), finding.what


def test_ordinary_waits_give_no_findings():
    assert found(status_of(waiting_for="rollouts", waiting_s=2.0, replay=replay_waiting(1.0))) == []
    assert found(status_of(), [actor("a", idle_s=25.0), actor("b")]) == []
    assert found(status_of(waiting_fraction=0.0, queue_size=0, queue_capacity=0)) == [], "there is no queue"
    slow = [actor("a", idle_s=100.0), actor("b", idle_s=90.0), actor("c", idle_s=80.0)]
    assert found(status_of(), slow) == [], "environments that are slow everywhere are not one that hangs"


def test_worst_finding_comes_first():
    status = status_of(waiting_fraction=0.9, rejected_rollouts=1)
    assert [severity for severity, _ in found(status)] == [Severity.WRONG, Severity.NOTE]


def test_every_operator_limit_has_its_own_advice():
    """Limits that only the caller can keep are told the same."""

    def advice_on(limit: str) -> str:
        status = status_of(throttled=(Throttled(who="10.0.0.7", limit=limit, times=3, idle_s=5.0),))
        (finding,) = diagnose(status, (), own_version="1.0")
        return finding.advice

    of_operators = {*Limits.__dataclass_fields__, "max_streams", "max_calls"}
    no_call_meets = {"join_lease_s", "max_connections", "max_streams_per_connection"}
    assert {limit for limit in of_operators if advice_on(limit) == advice_on("max_dimensions")} == no_call_meets


def test_evaluation_without_evaluator_is_wrong():
    nobody = EvaluationStatus(last_error="ValueError: no licence")
    assert found(status_of(evaluation=nobody)) == [
        (
            Severity.WRONG,
            "no evaluator is connected, but the run evaluates policies; the last one failed: ValueError: no licence",
        )
    ]


def test_what_the_learner_finds_about_training_is_a_note_with_its_advice():
    told = LearningFinding("critic-clipped", "the critic's gradient is always clipped", "try --ppo.normalize-rewards")
    (finding,) = diagnose(status_of(findings=(told,)), (), own_version="1.0")
    assert (finding.severity, finding.what, finding.advice) == (Severity.NOTE, told.what, told.advice)
