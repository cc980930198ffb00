import numpy as np
import pytest

from rollcast.learner.history.events import MAX_TEXT_LENGTH, N_EVENTS
from rollcast.learner.history.points import Sample
from rollcast.learner.history.recent import RecentCounts, RecentDurations
from rollcast.learner.history.run_history import N_EVALUATIONS, RunHistory
from rollcast.services.history.history import EventSeverity, LearnerActivity
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.limits.limits import MAX_TRACEBACK_LENGTH
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def history(clock) -> RunHistory:
    return RunHistory(max_policy_lag=4, clock=clock)


def acting(seconds: float, *, version: int = 0, age_s: float = 0.0) -> ActorActivity:
    return ActorActivity(
        state=ActingState.ACTING,
        seconds=(0.0, seconds, 0.0, 0.0, 0.0, 0.0),
        policy_version=version,
        policy_age_s=age_s,
    )


def test_a_reader_gets_everything_once(history, clock):
    rng = np.random.default_rng(4)
    after, events, points, evaluations = None, [], [], []
    for i in range(300):
        clock.now += float(rng.choice([0.001, 0.4, 1.0]))
        match rng.integers(4):
            case 0:
                history.note(EventSeverity.INFO, f"event {i}")
            case 1:
                history.sample(Sample(env_steps=i))
            case 2:
                history.evaluated(env_steps=i, policy_version=i, mean_return=0.0, interval=(0.0, 0.0), best=False)
            case _:
                news = history.news(after)
                after = news.now_s
                events += news.events
                points += news.points
                evaluations += news.evaluations
    clock.now += 1.0
    last = history.news(after)
    events += last.events
    points += last.points
    evaluations += last.evaluations
    everything = history.news(None)
    assert events == list(everything.events)
    assert evaluations == list(everything.evaluations)
    assert sorted(points, key=repr) == sorted(everything.points, key=repr)
    assert len(events) > 30
    assert len(points) > 30


def test_the_last_events_and_evaluations_of_all_times_are_kept_and_long_texts_are_cut(history, clock):
    for i in range(2 * N_EVENTS):
        history.note(EventSeverity.ERROR, f"{i} " + "x" * 2000, who="a", detail="y" * 100_000 + "the end")
    news = history.news(None)
    assert len(news.events) == N_EVENTS
    assert all(len(event.text) == MAX_TEXT_LENGTH for event in news.events)
    assert all(len(event.detail) == MAX_TRACEBACK_LENGTH and event.detail.endswith("the end") for event in news.events)
    for i in range(2 * N_EVALUATIONS):
        history.evaluated(env_steps=i, policy_version=i, mean_return=1.0, interval=(0.0, 2.0), best=i == 77)
        clock.now += 1.0
    evaluations = [one.env_steps for one in history.news(None).evaluations]
    assert len(evaluations) == N_EVALUATIONS
    assert max(np.diff(evaluations)) <= 4, "they are thinned out evenly"
    assert {0, 77, 2 * N_EVALUATIONS - 1} <= set(evaluations), "both ends and the best are kept"


def test_metrics_are_curves_without_what_is_no_number(history, clock):
    history.recorded(10, {"loss": 0.5, "return": float("nan")})
    first = history.news(None)
    clock.now += 1.0
    history.recorded(20, {"loss": 0.25, "return": 3})
    assert [(one.metric, one.env_steps, one.values) for one in first.curves] == [("loss", (10,), (0.5,))]
    after = history.news(first.now_s).curves
    assert [(one.metric, one.values) for one in after] == [("loss", (0.25,)), ("return", (3.0,))]
    assert [one.values for one in history.news(None).curves] == [(0.5, 0.25), (3.0,)]


def test_points_show_how_long_the_trainer_waited(history, clock):
    history.sample(Sample())
    clock.now += 0.75  # a trainer waits from the begin
    history.activity.enter(LearnerActivity.UPDATING)
    clock.now += 0.25
    history.sample(Sample(env_steps=50))
    (point,) = history.news(None).points
    assert (point.time_s, point.waiting_fraction, point.env_steps_per_second) == (1.0, 0.75, 50.0)


def test_the_learners_lane_shows_its_states_until_training_has_ended(history, clock):
    history.sample(Sample())
    for state in (LearnerActivity.UPDATING, LearnerActivity.PAUSED, LearnerActivity.WAITING):
        clock.now += 0.5
        history.activity.enter(state)
        clock.now += 0.5
        history.sample(Sample(), is_training=state is not LearnerActivity.WAITING)
    clock.now += 3.0
    history.sample(Sample(), is_training=False)
    (lane,) = history.news(None).lanes
    assert (lane.actor_id, lane.interval_s, lane.end_s) == ("", 1.0, 3.0)
    assert lane.shares.tolist() == [[128, 128, 0, 0, 0], [0, 128, 0, 0, 128], [0, 0, 0, 0, 0]]


def test_an_actor_has_a_lane_while_it_is_connected(history, clock):
    history.acted("a", acting(1.0))  # nobody of this name is connected
    disconnect = history.connected("a", lambda: None)
    history.acted("a", acting(50.0))
    for second in (1, 2):
        clock.now += 1.0
        history.acted("a", acting(50.0 + second))
    disconnect()
    clock.now += 1.0
    history.acted("a", acting(53.0))
    history.connected("a", lambda: None)
    disconnect()  # this stream has been replaced
    history.acted("a", acting(53.0))
    clock.now += 1.0
    history.acted("a", acting(54.0))
    clock.now += 4.0
    history.sample(Sample())
    lane = next(lane for lane in history.news(None).lanes if lane.actor_id == "a")
    assert lane.end_s == 5.0
    assert lane.shares[:, ActingState.ACTING.value - 1].tolist() == [255, 255, 0, 255, 0]
    assert lane.shares.sum() == 3 * 255


def test_an_actor_that_is_made_to_wait_is_shown_waiting_for_credit(history, clock):
    history.connected("a", lambda: 1000.0)
    clock.now += 5.0
    history.sample(Sample())
    lane = next(lane for lane in history.news(None).lanes if lane.actor_id == "a")
    assert lane.shares[:, ActingState.WAITING_FOR_CREDIT.value - 1].tolist() == [255, 255]


def test_delays_are_those_of_the_last_minute(history, clock):
    history.trained(np.array([0, 1, 1, 40, 4]), (0.5, 2.0, 2.0))
    history.published(7)
    history.connected("a", lambda: None)
    clock.now += 3.0
    for age_s in (1.0, 2.0):  # only the first report of a version tells when it came into use
        history.acted("a", acting(9.0, version=7, age_s=age_s))
    history.acted("a", acting(9.0, version=3, age_s=0.0))  # it is not known when this one was published
    delays = history.news(None).delays
    assert len(delays.trajectories_by_lag) == 33
    assert {lag: n for lag, n in enumerate(delays.trajectories_by_lag) if n} == {0: 1, 1: 2, 4: 1, 32: 1}
    assert delays.max_policy_lag == 4
    assert (delays.data_age_p50_s, delays.data_age_p99_s) == pytest.approx((2.0, 2.0), rel=0.03)
    assert (delays.publish_lag_p50_s, delays.publish_lag_p99_s) == pytest.approx((2.0, 2.0), rel=0.03)
    clock.now += 60.0
    delays = history.news(None).delays
    assert sum(delays.trajectories_by_lag) == 0
    assert (delays.data_age_p50_s, delays.publish_lag_p99_s) == (None, None)


def test_an_update_without_rollouts_counts_nothing(history):
    history.trained(np.zeros(0, np.int64), ())
    assert sum(history.news(None).delays.trajectories_by_lag) == 0


def test_counts_are_those_of_the_last_minute_as_a_brute_force_twin_says():
    rng = np.random.default_rng(1)
    counts, added, now = RecentCounts(3), [], 0.0
    for _ in range(400):
        now += float(rng.choice([0.1, 1.0, 5.0, 70.0], p=[0.5, 0.4, 0.09, 0.01]))
        more = rng.integers(0, 5, 3)
        counts.add(now, more)
        added.append((int(now), more))
        expected = sum(one for second, one in added if second > int(now) - 60)
        assert counts.total(now).tolist() == expected.tolist()
    assert counts.total(now + 60).tolist() == [0, 0, 0]


def test_quantiles_are_those_of_the_durations_to_a_fortieth():
    rng = np.random.default_rng(2)
    durations_s = np.exp(rng.normal(-2, 3, 1001))
    recent = RecentDurations()
    recent.add(5.0, durations_s[:500])
    recent.add(6.0, durations_s[500:])
    found = recent.quantiles(7.0, 0.0, 0.5, 0.99)
    expected = np.quantile(np.maximum(durations_s, 1e-4), [0.0, 0.5, 0.99], method="inverted_cdf")
    assert found == pytest.approx(expected.tolist(), rel=0.026)


def test_there_are_no_quantiles_of_nothing():
    recent = RecentDurations()
    assert recent.quantiles(0.0, 0.5, 0.99) == (None, None)
    recent.add(0.0, np.array([1.0]))
    assert recent.quantiles(59.0, 0.5) == pytest.approx((1.0,), rel=0.026)
    assert recent.quantiles(60.0, 0.5) == (None,)


def test_durations_beyond_the_scale_count_as_its_ends():
    recent = RecentDurations()
    recent.add(0.0, np.array([0.0, 1e30]))
    shortest, longest = recent.quantiles(0.0, 0.0, 1.0)
    assert shortest < 2e-4
    assert longest > 86_400
