import pytest

from rollcast.actor.connection.reconnects import Reconnects
from rollcast.services.errors import (
    InvalidRolloutError,
    LearnerUnreachableError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    ThrottledError,
    UnknownActorError,
    UnreadableMessageError,
)


@pytest.mark.parametrize(
    "error", [LearnerUnreachableError("x"), NotReadyError("x"), ThrottledError("x"), UnknownActorError("x"), None]
)
def test_delays_grow_until_a_connection_has_lasted(error):
    reconnects = Reconnects()
    delays = [reconnects.delay_after(error, lasted_s=9.9) for _ in range(10)]
    assert delays[0] <= 0.1
    assert delays[-1] >= 2.5
    assert reconnects.delay_after(error, lasted_s=10.0) <= 0.1
    assert 0.1 <= reconnects.delay_after(error, lasted_s=0.0) <= 0.2


@pytest.mark.parametrize(
    "error", [InvalidRolloutError("x"), LimitExceededError("x"), LimitExceededError("x", limit="y")]
)
def test_raises_errors_that_another_attempt_would_meet_again(error):
    with pytest.raises(type(error)) as raised:
        Reconnects().delay_after(error)
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [UnreadableMessageError("x"), MissingMessageError("x"), LimitExceededError("x", limit="max_message_bytes")],
)
def test_retries_after_damage_five_times_in_a_row(error):
    reconnects = Reconnects()
    for _ in range(2):
        for _ in range(5):
            reconnects.delay_after(error)
            reconnects.delay_after(NotReadyError("between"))
        with pytest.raises(type(error)):
            reconnects.delay_after(error)
        reconnects.delay_after(NotReadyError("it went well"), lasted_s=10.0)
    for _ in range(20):
        reconnects.delay_after(error)
        reconnects.progressed()
