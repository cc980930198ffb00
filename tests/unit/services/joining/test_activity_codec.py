import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidInputError, LimitExceededError
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.joining.activity_codec import activity_from_proto, activity_to_proto
from rollcast.services.limits.activity_rate import ActivityRate
from rollcast.v1 import rollout_pb2
from tests.clocks import Clock

N_STATES = len(ActingState)
SECONDS = st.floats(0, allow_infinity=False, allow_nan=False)
ACTIVITIES = st.builds(
    ActorActivity,
    state=st.sampled_from(ActingState),
    seconds=st.tuples(*[SECONDS] * N_STATES),
    policy_version=st.integers(0, 2**64 - 1),
    policy_age_s=SECONDS,
    cpu_s=SECONDS,
    memory_bytes=st.integers(0, 2**64 - 1),
    answer_p50_s=SECONDS,
    answer_p99_s=SECONDS,
)
ACTIVITY = ActorActivity(
    state=ActingState.SENDING, seconds=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), policy_version=7, policy_age_s=0.5
)


@pytest.mark.slow
@given(ACTIVITIES)
def test_reports_come_back_as_they_were(activity):
    wire = activity_to_proto(activity).SerializeToString()
    assert activity_from_proto(rollout_pb2.ActorActivity.FromString(wire), actor_id="a") == activity


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"seconds": (1.0,) * (N_STATES - 1)}, "actor 'a' reports 5 times; expected 6"),
        ({"seconds": ()}, "reports 0 times"),
        ({"seconds": (0.0, float("nan"), 0.0, 0.0, 0.0, 0.0)}, "reports nan s of acting; expected a finite number"),
        ({"seconds": (float("inf"), 0.0, 0.0, 0.0, 0.0, 0.0)}, "reports inf s of connecting"),
        ({"seconds": (0.0, 0.0, 0.0, 0.0, 0.0, -1.0)}, r"reports -1\.0 s of loading_policy"),
        ({"cpu_s": float("inf")}, "reports inf s of processors"),
        ({"policy_age_s": -0.5}, r"reports -0\.5 s of its policy"),
        ({"policy_age_s": float("nan")}, "reports nan s of its policy"),
        ({"answer_p50_s": -1.0}, r"reports -1\.0 s of its answers"),
        ({"answer_p99_s": float("inf")}, "reports inf s of its answers"),
    ],
)
def test_refuses_times_that_cannot_be(changes, match):
    proto = activity_to_proto(ACTIVITY)
    for name, value in changes.items():
        if name == "seconds":
            proto.seconds[:] = value
        else:
            setattr(proto, name, value)
    with pytest.raises(InvalidInputError, match=match):
        activity_from_proto(proto, actor_id="a")


@pytest.mark.parametrize("state", [0, 99])
def test_ignores_a_state_that_is_unknown_here(state):
    proto = activity_to_proto(ACTIVITY)
    proto.state = state
    assert activity_from_proto(proto, actor_id="a") is None


def test_ignores_reports_of_more_states_than_are_known_here():
    proto = activity_to_proto(ACTIVITY)
    proto.seconds.append(7.0)
    assert activity_from_proto(proto, actor_id="a") is None


class TestActivityRate:
    def test_a_stream_may_report_twice_as_often_as_asked_and_a_little_more(self):
        clock = Clock(100.0)
        rate = ActivityRate(1.0, actor_id="a", clock=clock)
        clock.now += 30.0
        assert all(rate.count() for _ in range(2 * 30 + 10))
        with pytest.raises(LimitExceededError, match=r"'a' has reported its time 71 times in 30\.0 s") as refused:
            rate.count()
        assert refused.value.limit == "max_activity_rate"

    def test_reports_that_come_late_and_together_are_taken(self):
        clock = Clock(100.0)
        rate = ActivityRate(1.0, actor_id="a", clock=clock)
        clock.now += 3600.0
        assert all(rate.count() for _ in range(3600))

    def test_reports_that_nobody_has_asked_for_are_ignored_but_not_without_end(self):
        clock = Clock(100.0)
        rate = ActivityRate(0.0, actor_id="a", clock=clock)
        clock.now += 3600.0
        assert [rate.count() for _ in range(10)] == [False] * 10
        with pytest.raises(LimitExceededError):
            rate.count()
