import pytest

from rollcast.actor.connection.reconnects import Patience, Reconnects
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


class TestPatience:
    def test_an_address_that_is_not_ready_is_waited_for_so_long(self):
        now = [100.0]
        patience = Patience(lambda: now[0])
        assert patience.waits_for("relay", NotReadyError("its learner starts again"))
        now[0] += 59
        assert patience.waits_for("relay", NotReadyError("its learner starts again"))
        assert not patience.waits_for("relay", NotReadyError("its learner starts again"), longest_s=30.0)
        assert patience.waits_for("other", NotReadyError("its learner starts again"))
        now[0] += 1
        assert not patience.waits_for("relay", NotReadyError("its learner starts again"))
        patience.forget()
        assert patience.waits_for("relay", NotReadyError("its learner starts again"))

    @pytest.mark.parametrize("error", [LearnerUnreachableError("x"), ThrottledError("x"), LimitExceededError("x")])
    def test_one_that_cannot_be_used_at_all_is_not(self, error):
        patience = Patience()
        assert patience.waits_for("relay", NotReadyError("it stops"))
        assert not patience.waits_for("relay", error)
