import itertools
import time

import numpy as np
import pytest

from rollcast.services.errors import (
    InvalidTensorError,
    LimitExceededError,
    NotReadyError,
    UnknownActorError,
)
from rollcast.services.joining.activity import ActingState, ActorActivity, ActorFailure
from rollcast.services.policies.codec import encode_policy
from tests.integration.learner_fakes import offer
from tests.policies import SpoiltPolicy
from tests.rollouts import assert_same_rollout, make_rollout

# as fast as an actor may be asked for its time
INTERVAL_S = 0.1


def test_nothing_above_the_credit_is_sent(learner, client):
    learner.sink.credit = 2
    client.join(offer())
    uplink = client.open_rollout_stream("a", 1)
    responses = uplink.responses()
    for sequence in range(1, 6):
        uplink.send(make_rollout(sequence))
    assert next(responses).credit_sequence == 2  # from here on the stream may send two
    learner.sink.wait_for(lambda: len(learner.sink.rollouts) == 2)
    assert [next(responses).acknowledged_sequence for _ in range(5)] == [1, 2, 3, 4, 5]
    uplink.cancel()


def test_send_raises_after_the_end_of_the_stream(client):
    uplink = client.open_rollout_stream("nobody", 1)
    with pytest.raises(UnknownActorError):
        list(uplink.responses())
    with pytest.raises(NotReadyError, match="rollout 1 was queued after the stream"):
        uplink.send(make_rollout(1))


def open_reporting(learner, client, **options):
    """Opens a stream that reports its actor's time, each report with one second more."""
    learner.sink.activity_interval_s = options.setdefault("activity_interval_s", INTERVAL_S)
    agreement = client.join(offer())
    assert agreement.activity_interval_s == options["activity_interval_s"]
    seconds = itertools.count()
    return client.open_rollout_stream(
        agreement.actor_id,
        agreement.incarnation,
        activity=lambda: ActorActivity(
            state=ActingState.ACTING, seconds=(0.0, float(next(seconds)), 0.0, 0.0, 0.0, 0.0), policy_version=3
        ),
        **options,
    )


class Clock:
    """The time, so many seconds ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def uplinks_clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("rollcast.services.streams.uplink.time", clock)
    return clock


@pytest.fixture(params=[False, True], ids=["alone", "with rollouts"])
def reporting(learner, client, request):
    """A stream that reports its actor's time."""
    uplink = open_reporting(learner, client, report_with_rollout=request.param)
    yield uplink
    uplink.cancel()
    learner.sink.wait_for(lambda: all(len(stream.closes) == 1 for stream in learner.sink.streams))


def n_reports(learner) -> int:
    return len(learner.sink.streams[0].activities) if learner.sink.streams else 0


def test_time_is_reported_again_and_again_while_there_is_no_credit(learner, reporting):
    reporting.send(make_rollout(9))
    responses = reporting.responses()
    assert next(responses).credit_sequence == 4
    learner.sink.wait_for(lambda: n_reports(learner) >= 4)
    (stream,) = learner.sink.streams
    assert [activity.seconds[1] for activity in stream.activities[:4]] == [0.0, 1.0, 2.0, 3.0]
    assert {(activity.state, activity.policy_version) for activity in stream.activities} == {(ActingState.ACTING, 3)}
    assert learner.sink.rollouts == []
    assert learner.sink.awaits, "a report is not the message that the learner waits for"


def test_rollouts_and_failures_travel_among_the_reports(learner, reporting):
    responses = reporting.responses()
    assert next(responses).acknowledged_sequence == 0
    for sequence in range(1, 6):
        reporting.send(make_rollout(sequence))
        assert next(responses).acknowledged_sequence == sequence
        learner.sink.wait_for(lambda wanted=sequence: n_reports(learner) >= wanted)
    failure = ActorFailure(exception_type="ValueError", message="m", traceback="t", env_seed=5)
    reporting.fail(failure)
    reporting.close()
    assert list(responses) == []
    assert [rollout.sequence for rollout in learner.sink.rollouts] == [1, 2, 3, 4, 5]
    assert learner.sink.failures == [failure]
    assert learner.sink.streams[0].closes == [True]


def test_a_stream_that_always_has_a_rollout_to_send_reports_too(learner, reporting):
    responses, sequence = reporting.responses(), 0
    learner.sink.credit = 100
    next(responses)
    while n_reports(learner) < 3:
        for _ in range(50):
            sequence += 1
            reporting.send(make_rollout(sequence))
        while next(responses).acknowledged_sequence < sequence:
            pass
        learner.sink.rollouts.clear()
    assert learner.sink.rejections == []


def test_no_time_is_reported_to_a_learner_that_did_not_ask(learner, client):
    agreement = client.join(offer())
    assert agreement.activity_interval_s == 0.0
    uplink = client.open_rollout_stream("a", 1, activity=lambda: pytest.fail("asked"), activity_interval_s=0.0)
    responses = uplink.responses()
    next(responses)
    for sequence in range(1, 4):
        uplink.send(make_rollout(sequence))
        next(responses)
    uplink.close()
    assert list(responses) == []
    assert n_reports(learner) == 0


def test_a_report_that_is_due_travels_with_the_next_rollout(learner, client, uplinks_clock):
    uplink = open_reporting(learner, client, activity_interval_s=20.0, report_with_rollout=True)
    responses = uplink.responses()
    next(responses)
    learner.sink.wait_for(lambda: n_reports(learner) == 1)
    (stream,) = learner.sink.streams
    assert stream.came_alone == [True], "the first goes at once"
    uplinks_clock.ahead_s = 25.0  # it is due, and late, but not so late that it would go alone
    for sequence in (1, 2, 3):
        uplink.send(make_rollout(sequence))
        assert next(responses).acknowledged_sequence == sequence
    assert [activity.seconds[1] for activity in stream.activities] == [0.0, 1.0]
    assert stream.came_alone == [True, False]
    assert_same_rollout(learner.sink.rollouts[0], make_rollout(1))
    uplink.close()
    assert list(responses) == []


def test_a_report_waits_for_a_rollout_until_half_its_interval_has_passed(learner, client, uplinks_clock):
    uplink = open_reporting(learner, client, activity_interval_s=20.0, report_with_rollout=True)
    responses = uplink.responses()
    next(responses)
    learner.sink.wait_for(lambda: n_reports(learner) == 1)
    uplinks_clock.ahead_s = 31.0
    learner.sink.wait_for(lambda: n_reports(learner) == 2)
    assert learner.sink.streams[0].came_alone == [True, True]
    uplink.cancel()


@pytest.mark.parametrize(
    ("chunk", "match"),
    [
        (b"\x08\x01", "has 0 bytes"),
        (encode_policy(7, {"w": np.zeros(300_000, np.float32)}).chunk, "expected at most 1048576"),
        (encode_policy(7, {"w": np.zeros(3, np.float32)}).chunk[:-1] + b"\xff", "digest"),
    ],
    ids=["empty", "too large", "damaged"],
)
def test_what_comes_as_a_policy_and_is_none_ends_the_stream(learner, client, chunk, match):
    client.join(offer())
    policy = encode_policy(7, {"w": np.zeros(3, np.float32)})
    learner.sink.policy = SpoiltPolicy(policy, chunk=chunk)
    uplink = client.open_rollout_stream("a", 1, on_policy=lambda *_: pytest.fail("it is none"))
    with pytest.raises((InvalidTensorError, LimitExceededError), match=match):
        next(uplink.responses())
    uplink.cancel()
