from rollcast.actor.connection.outbox import Outbox
from rollcast.services.errors import NotReadyError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.rollouts.rollouts import StreamProgress
from tests.rollouts import make_rollout


class Uplink:
    """Takes rollouts as a stream does, until it has ended."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.failures: list[ActorFailure] = []
        self.ended = False

    def send(self, rollout) -> None:
        if self.ended:
            raise NotReadyError("the stream has ended")
        self.sent.append(rollout.sequence)

    def fail(self, failure: ActorFailure) -> None:
        self.failures.append(failure)


def progress(acknowledged: int, credit: int = 9, min_policy_version: int = 0) -> StreamProgress:
    return StreamProgress(
        acknowledged_sequence=acknowledged, credit_sequence=credit, min_policy_version=min_policy_version
    )


def opened(outbox: Outbox, acknowledged: int = 0) -> Uplink:
    uplink = Uplink()
    outbox.attach(uplink)
    outbox.take(progress(acknowledged))
    return uplink


def put(outbox: Outbox, *sequences: int) -> None:
    for sequence in sequences:
        outbox.put(make_rollout(sequence))


def test_keeps_rollouts_until_the_stream_has_its_first_answer():
    outbox, uplink = Outbox(), Uplink()
    outbox.put(make_rollout(1))
    outbox.attach(uplink)
    outbox.put(make_rollout(2))
    assert uplink.sent == [], "the learner has not said yet what it has"
    outbox.take(progress(1))
    assert uplink.sent == [2], "what the learner has is not sent again"


def test_sends_rollouts_at_once_on_an_open_stream():
    outbox = Outbox()
    uplink = opened(outbox)
    put(outbox, 1, 2)
    assert uplink.sent == [1, 2]
    assert len(outbox) == 2


def test_drops_rollouts_when_they_are_acknowledged():
    outbox = Outbox()
    opened(outbox)
    put(outbox, 1, 2, 3)
    assert outbox.take(progress(2))
    assert len(outbox) == 1
    assert not outbox.take(progress(2)), "nothing new was acknowledged"
    assert not outbox.take(progress(1)), "an answer that was overtaken takes nothing back"
    assert outbox.acknowledged == 2


def test_sends_unacknowledged_rollouts_again_in_order_on_the_next_stream():
    outbox = Outbox()
    opened(outbox)
    put(outbox, 1, 2, 3)
    outbox.attach(None)
    outbox.put(make_rollout(4))
    assert opened(outbox, acknowledged=1).sent == [2, 3, 4]


def test_keeps_a_rollout_that_an_ended_stream_refuses():
    outbox = Outbox()
    opened(outbox).ended = True
    outbox.put(make_rollout(1))
    assert opened(outbox).sent == [1]


def test_credit_and_oldest_policy_are_those_of_the_last_answer():
    outbox = Outbox()
    opened(outbox)
    outbox.take(progress(0, credit=3, min_policy_version=7))
    assert (outbox.credit_sequence, outbox.min_policy_version) == (3, 7)


def test_reports_a_failure_only_on_an_open_stream():
    outbox, uplink, failure = Outbox(), Uplink(), ActorFailure(exception_type="E", message="m", traceback="")
    outbox.fail(failure)
    outbox.attach(uplink)
    outbox.fail(failure)
    assert uplink.failures == []
    outbox.take(progress(0))
    outbox.fail(failure)
    assert uplink.failures == [failure]
