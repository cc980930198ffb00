import pytest

from rollcast.services.history.history import PolicyDelays
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import EvaluationStatus
from rollcast.tools.watching.rows import rows
from rollcast.tools.watching.run_view import RunView
from tests.histories import RUN, busy_run, replay_status, status, update, view_of


def text_of(view):
    return {row.name: row.text for row in rows(view)}


@pytest.fixture
def view():
    return view_of(busy_run())


def test_what_is_not_known_is_a_dash():
    nothing = status(updates=0, mean_return=None, queue_capacity=0, evaluation=EvaluationStatus())
    shown = text_of(view_of(update(1.0, run=RUN, status=nothing, delays=PolicyDelays())))
    for name in ("env steps/s", "trainer waits", "policy lag", "queue", "mean return", "evaluation"):
        assert shown[name] == "-", name
    assert shown["publish lag"] == "p50 -"


def test_a_buffer_and_its_limiter_have_gauges():
    waiting = (ReplayWaiting(reason="full", seconds=2.0, who="the actors"),)
    replay = replay_status(min_diff=-100.0, max_diff=300.0, waiting=waiting)
    shown = {one.name: one for one in rows(view_of(update(1.0, run=RUN, status=status(replay=replay))))}
    assert (shown["buffer"].text, shown["buffer"].share) == ("250 of 1.0k", 0.25)
    assert shown["limiter"].share == 0.25
    assert "the actors for 2.0 s" in shown["limiter"].note
    shown = {one.name: one for one in rows(view_of(update(1.0, run=RUN, status=status(replay=replay_status()))))}
    assert shown["limiter"].share is None
    assert shown["limiter"].note == "- to -; waits: none"


def test_there_are_none_before_the_first_update():
    assert rows(RunView()) == ()


def test_an_evaluation_of_the_status_is_newer_than_those_of_the_history():
    newer = EvaluationStatus(
        evaluations=3,
        mean_return=190.0,
        ci_low=180.0,
        ci_high=200.0,
        policy_version=800,
        best_mean_return=214.3,
        best_policy_version=790,
    )
    told = view_of(update(60.0, run=RUN, status=status(evaluation=newer)))
    row = next(row for row in rows(told) if row.name == "evaluation")
    assert (row.text, row.note) == ("190.0", "180.0 to 200.0, v800; best 214.3, v790")


def test_rows_that_need_attention_say_so(view):
    assert [row.name for row in rows(view) if row.is_notable] == ["trainer waits"]
    dropping = view_of(update(60.0, run=RUN, status=status(rejected_rollouts=2)))
    (row,) = [row for row in rows(dropping) if row.is_notable]
    assert (row.name, row.text, row.note) == ("dropped", "0", "too old; rejected 2, sent twice 0")
