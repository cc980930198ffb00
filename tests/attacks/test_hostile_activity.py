"""Hostile reports of an actor's time, against a real server: too many, impossible, and in the place of work."""

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import DamagedMessageError, InvalidInputError, LimitExceededError
from rollcast.services.joining.activity_codec import activity_to_proto
from rollcast.services.limits.limits import ACTIVITIES_AHEAD
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.wire.seal import seal
from rollcast.v1 import rollout_pb2
from tests.integration.learner_fakes import offer, serve
from tests.rollouts import make_rollout
from tests.unit.services.joining.test_activity_codec import ACTIVITY
from tests.unit.services.raw_streams import opening, raw_stream


def report(**changes: object) -> bytes:
    activity = activity_to_proto(ACTIVITY)
    for name, value in changes.items():
        if name == "seconds":
            activity.seconds[:] = value
        else:
            setattr(activity, name, value)
    return rollout_pb2.StreamRolloutsRequest(activity=activity).SerializeToString()


@pytest.fixture
def learner():
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.sink.activity_interval_s = 1.0
        client.join(offer())
        yield learner


def beside_rollouts():
    for sequence in range(1, 300):
        yield from RolloutEncoder().encode(make_rollout(sequence), ACTIVITY)


@pytest.mark.parametrize("flood", [lambda: [report()] * 5000, beside_rollouts], ids=["alone", "beside rollouts"])
def test_a_flood_of_reports_ends_the_stream_and_reaches_no_further(learner, flood):
    learner.sink.credit = 5000
    error = raw_stream(learner.address, opening(), *flood())
    assert isinstance(error, LimitExceededError)
    assert error.limit == "max_activity_rate"
    (stream,) = learner.sink.streams
    assert ACTIVITIES_AHEAD <= len(stream.activities) < 500, "a stream of a few seconds"
    assert len(learner.sink.rollouts) < 299
    assert stream.closes == [False]
    assert [rejection.limit for rejection in learner.sink.rejections] == ["max_activity_rate"]


def test_impossible_reports_are_refused_with_what_is_wrong(learner):
    """unit/services/joining/test_activity_codec.py has them all."""
    error = raw_stream(learner.address, opening(), report(), report(seconds=(float("nan"),) * 6))
    assert isinstance(error, InvalidInputError)
    assert "actor 'a' reports" in str(error)
    (stream,) = learner.sink.streams
    assert len(stream.activities) == 1


def test_reports_of_what_is_unknown_are_ignored(learner):
    assert raw_stream(learner.address, opening(), report(seconds=(0.0,) * 100_000)) is None
    (stream,) = learner.sink.streams
    assert (stream.activities, stream.closes) == ([], [True])


def test_a_report_may_not_open_a_stream(learner):
    error = raw_stream(learner.address, report())
    assert isinstance(error, InvalidInputError)
    assert "the stream began with activity; expected open" in str(error)


def test_a_report_that_was_changed_on_its_way_is_asked_for_again(learner):
    sealed = bytearray(seal(report()))
    sealed[8] ^= 1
    assert isinstance(raw_stream(learner.address, seal(opening()), bytes(sealed)), DamagedMessageError)
    assert isinstance(raw_stream(learner.address, seal(opening()), report()), DamagedMessageError), "without a digest"
    assert all(stream.activities == [] for stream in learner.sink.streams)
    assert learner.sink.rejections == []


def test_a_learner_that_asks_for_reports_all_the_time_is_refused():
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.sink.activity_interval_s = 1e-9
        with pytest.raises(InvalidInputError, match="report of the time every 1e-09 s"):
            client.join(offer())
