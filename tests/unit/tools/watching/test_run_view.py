import dataclasses

import numpy as np

from rollcast.services.history.history import EventSeverity, HistoryEvent, LearnerActivity
from rollcast.services.joining.activity import ActingState
from rollcast.tools.watching.run_view import RunView
from tests.histories import RUN, STARTED_UNIX_S, actor, busy_run, curve, lane, points, status, update, view_of

LATER = dataclasses.replace(RUN, started_unix_s=STARTED_UNIX_S + 500.0)


def event(time_s: float, text: str = "it happened") -> HistoryEvent:
    return HistoryEvent(time_s=time_s, severity=EventSeverity.INFO, who="", text=text)


def test_knows_nothing_before_the_first_update():
    view = RunView()
    assert (view.run, view.status, view.now_s, view.now_unix_s) == (None, None, None, None)
    assert (view.points(), view.last_minute(), view.ranked_actors(), view.shares("a")) == ((), (), [], None)
    assert not view.lane("", 60.0, 60).any()


def test_times_are_unix_seconds():
    view = view_of(busy_run())
    assert view.now_unix_s == STARTED_UNIX_S + 60
    assert view.points()[0].time_s == STARTED_UNIX_S + 1
    assert view.evaluations[0].time_s == STARTED_UNIX_S + 50
    assert view.events[-1].time_s == STARTED_UNIX_S + 40
    assert view.since_start(view.events[-1].time_s) == 40


def test_last_seconds_are_those_before_the_last_update():
    view = view_of(busy_run())
    assert [point.time_s - STARTED_UNIX_S for point in view.points(3.0)] == [58.0, 59.0, 60.0]
    assert len(view.last_minute()) == 60


def test_updates_add_up_and_the_newest_status_counts():
    view = view_of(
        busy_run(), update(61.0, status=status(updates=900), points=points(1, end_s=61.0), events=(event(60.5),))
    )
    assert len(view.points()) == 61
    assert [one.text for one in view.events][-1] == "it happened"
    assert len(view.events) == 3
    assert view.status is not None
    assert view.status.updates == 900
    assert view.run is not None
    assert view.run.env_id == "LunarLander-v3"


def test_reconnect_to_the_same_learner_repeats_nothing():
    view = view_of(busy_run(), busy_run())
    assert (len(view.points()), len(view.evaluations), len(view.events)) == (60, 1, 2)
    np.testing.assert_array_equal(view.lane("node-1", 60.0, 60), view_of(busy_run()).lane("node-1", 60.0, 60))


def test_restarted_learner_adds_to_what_was_before():
    view = view_of(busy_run(), update(10.0, run=LATER, points=points(10), events=(event(3.0, "again"),)))
    times = [point.time_s - STARTED_UNIX_S for point in view.points()]
    assert times == [*map(float, range(1, 61)), *map(float, range(501, 511))]
    assert [one.text for one in view.events][-2:] == ["lost its connection", "again"]
    assert view.since_start(view.events[-1].time_s) == 503
    assert view.now_unix_s == STARTED_UNIX_S + 510


def test_a_resumed_run_has_one_clock_whether_or_not_its_earlier_process_was_watched():
    later = update(10.0, run=LATER, status=status(seconds=70.0), events=(event(3.0, "again"),))
    for updates, now in (((later,), 70), ((busy_run(), later), 510)):
        view = view_of(*updates)
        assert view.clock_s == now
        assert view.since_start(view.events[-1].time_s) == now - 7
    assert RunView().clock_s == 0.0


def test_curves_continue_over_restarts_and_repeat_nothing():
    first = update(3.0, run=RUN, curves=(curve("loss", 3.0, 2.0),))
    view = view_of(first, first, update(4.0, curves=(curve("return", 1.0),)))
    assert {name: one.values for name, one in view.curves().items()} == {"loss": (3.0, 2.0), "return": (1.0,)}
    copied = view.copy()
    view.apply(update(1.0, run=LATER, curves=(curve("loss", 1.0),)))
    assert view.curves()["loss"].values == (3.0, 2.0, 1.0)
    assert view.curves()["loss"].time_s[-1] == STARTED_UNIX_S + 501
    assert copied.curves()["loss"].values == (3.0, 2.0)


def test_remembers_500_events():
    view = view_of(update(1.0, run=RUN, events=tuple(event(i / 1000, str(i)) for i in range(700))))
    assert [view.events[0].text, view.events[-1].text, len(view.events)] == ["200", "699", 500]


def test_lanes_of_actors_that_the_learner_has_forgotten_are_forgotten():
    view = view_of(busy_run(), update(61.0, actors=(actor("node-1", 1),)))
    assert not view.lane("left-arm", 60.0, 10).any()
    assert view.lane("node-1", 60.0, 10).any()
    assert view.lane("", 60.0, 10).any()


def test_shares_are_of_the_last_minute():
    states = [LearnerActivity.UPDATING] * 30 + [LearnerActivity.WAITING] * 30
    shares = view_of(update(60.0, run=RUN, lanes=(lane("", states),))).shares("")
    assert shares is not None
    assert shares[[LearnerActivity.UPDATING.value - 1, LearnerActivity.WAITING.value - 1]].tolist() == [0.5, 0.5]


def test_actors_are_ranked_by_who_is_worst_off():
    lanes = (lane("idle", [ActingState.WAITING_FOR_CREDIT] * 60), lane("busy", [ActingState.ACTING] * 60))
    view = view_of(
        update(60.0, run=RUN, lanes=lanes, actors=(actor("busy", 0), actor("idle", 1), actor("mute", 2, idle_s=30.0)))
    )
    assert [info.actor_id for info in view.ranked_actors()] == ["mute", "idle", "busy"]


def test_copy_is_not_changed_by_later_updates():
    view = view_of(busy_run())
    copied, lanes = view.copy(), view.lane("node-1", 60.0, 60)
    new = lane("node-1", [ActingState.SENDING] * 5, end_s=65.0)
    view.apply(update(61.0, points=points(1, end_s=61.0), events=(event(60.5),), lanes=(new,)))
    assert (copied.now_s, len(copied.points()), len(copied.events)) == (60.0, 60, 2)
    np.testing.assert_array_equal(copied.lane("node-1", 60.0, 60), lanes)
