"""The actor's end of a rollout stream."""

import pytest

from rollcast.services.errors import (
    LimitExceededError,
    NotReadyError,
    UnknownActorError,
)
from rollcast.services.limits.limits import MAX_WAITING_ROLLOUTS
from rollcast.services.rollouts.rollouts import ActorFailure
from tests.integration.learner_fakes import offer
from tests.rollouts import make_rollout


def test_nothing_above_the_credit_is_sent(learner, client):
    learner.sink.credit = 2
    client.join(offer())
    uplink = client.open_rollout_stream("a", 1)
    responses = uplink.responses()
    for sequence in range(1, 6):
        uplink.send(make_rollout(sequence))
    assert next(responses).credit_sequence == 2  # from here on the stream may send two
    learner.sink.wait_for(lambda: len(learner.sink.rollouts) == 2)
    assert len(uplink._waiting) == 3
    assert [next(responses).acknowledged_sequence for _ in range(5)] == [1, 2, 3, 4, 5]
    uplink.cancel()


def test_send_raises_after_the_end_of_the_stream(client):
    uplink = client.open_rollout_stream("nobody", 1)
    with pytest.raises(UnknownActorError):
        list(uplink.responses())
    with pytest.raises(NotReadyError, match="rollout 1 came after the stream"):
        uplink.send(make_rollout(1))


def test_send_raises_above_the_limit_of_waiting_rollouts(uplink):
    with pytest.raises(LimitExceededError, match=f"{MAX_WAITING_ROLLOUTS} rollouts wait"):
        for sequence in range(1, MAX_WAITING_ROLLOUTS + 2):
            uplink.send(make_rollout(sequence + 100))


def test_a_failure_is_reported(learner, uplink):
    failure = ActorFailure(exception_type="ValueError", message="m", traceback="t", env_seed=5)
    uplink.fail(failure)
    uplink.close()
    list(uplink.responses())
    assert learner.sink.failures == [failure]
    assert learner.sink.streams[0].closes == [True]
