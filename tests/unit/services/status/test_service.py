import dataclasses
import itertools

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import (
    InvalidInputError,
    RefusedError,
)
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_MESSAGE_BYTES, Limits
from rollcast.services.status.status import Phase
from tests.integration.learner_fakes import serve


def test_control_calls_reach_the_learner(learner, client):
    assert client.status() == learner.control.status()
    assert client.actors() == tuple(learner.control.actors())
    client.pause()
    client.pause()
    client.resume()
    client.stop()
    assert learner.control.calls == ["pause", "pause", "resume", "stop"]
    assert client.save_checkpoint() == ("/run/checkpoint", 3)


# Every value differs from the default, and from the others.
ODD_LIMITS = Limits(
    max_actors=3,
    max_connections=17,
    max_streams_per_connection=19,
    max_rollout_bytes=1_000_003,
    max_bytes_in_flight=(1 << 33) + 7,
    calls_per_second=301.5,
    calls_per_second_per_host=207.25,
    max_half_open_calls=13,
    max_half_open_calls_per_host=11,
    request_s=7.5,
    stalled_stream_s=21.75,
    join_lease_s=33.125,
)


def test_describes_every_limit_as_the_server_has_it():
    odd, usual = dataclasses.asdict(ODD_LIMITS), dataclasses.asdict(DEFAULT_LIMITS)
    assert [name for name in odd if odd[name] == usual[name]] == []
    with serve(limits=ODD_LIMITS) as learner, LearnerClient(learner.address) as client:
        limits = client.describe().limits
    assert dataclasses.asdict(limits) == {**odd, "max_message_bytes": MAX_MESSAGE_BYTES}


def test_refusals_of_the_learner_reach_the_caller(learner, client):
    learner.control.phase, learner.control.run_dir = Phase.FINISHED, ""
    with pytest.raises(RefusedError, match="training has ended"):
        client.pause()
    with pytest.raises(RefusedError, match="no directory"):
        client.save_checkpoint()


@pytest.fixture(params=["status", "history"])
def watch(request, client):
    """Watches the learner's status, as it is or with the history."""

    def begin(interval_s):
        if request.param == "status":
            return client.watch_status(interval_s)
        return (update.status for update in client.watch_history(interval_s))

    return begin


def test_watching_ends_with_training(learner, watch):
    statuses = watch(0.1)
    assert [status.phase for status in itertools.islice(statuses, 2)] == [Phase.TRAINING] * 2
    learner.control.phase = Phase.FINISHED
    assert list(statuses)[-1].phase is Phase.FINISHED


def test_a_slow_watch_notices_the_end_of_training(learner, client):
    statuses = client.watch_status(3600)
    next(statuses)
    learner.control.phase = Phase.FINISHED
    assert next(statuses).phase is Phase.FINISHED
    assert list(statuses) == []


@pytest.mark.parametrize("interval_s", [0.01, -1, 3601, float("nan"), float("inf")])
def test_rejects_interval_outside_the_range(watch, interval_s):
    with pytest.raises(InvalidInputError, match="interval_s is"):
        next(watch(interval_s))
