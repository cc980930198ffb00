"""One actor's stream on a relay's call: what is given back when it ends, at whatever point that is."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from rollcast.services.limits.bytes_in_flight import BytesInFlight, StreamBytes
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.bundled_stream import ActorStream, Answer
from rollcast.v1 import rollout_pb2
from tests.integration.learner_fakes import FakeSink, FakeStream
from tests.rollouts import make_rollout


def in_frames(sequence: int) -> list[bytes]:
    """Returns a rollout in three messages, as one larger than a message travels."""
    (message,) = RolloutEncoder().encode(make_rollout(sequence))
    whole = rollout_pb2.StreamRolloutsRequest.FromString(message)
    whole.ClearField("digest")
    body, third = whole.body, len(whole.body) // 3
    whole.body = body[:third]
    parts = [(third, body[third : 2 * third]), (2 * third, body[2 * third :])]
    frames = [
        rollout_pb2.StreamRolloutsRequest(
            frame=rollout_pb2.TensorFrame(sequence=sequence, offset=offset), body=part
        ).SerializeToString()
        for offset, part in parts
    ]
    return [whole.SerializeToString(), *frames]


class Bundles:
    """A relay's call, which ends its actor's stream at one of the points at which that does something."""

    max_rollout_bytes = 1 << 20

    def __init__(self, ends_at: int) -> None:
        self.room = BytesInFlight()
        self.n_left = ends_at
        self.answers: list[Answer] = []
        self.stream = ActorStream(1, "actor 'a'", self)

    def happens(self) -> None:
        self.n_left -= 1
        if not self.n_left:
            self.stream.cancel()

    def answer(self, number: int, answer: Answer) -> None:
        self.answers.append(answer)

    def forget(self, number: int) -> None:
        pass

    def account(self, who: str, is_active: Callable[[], bool]) -> AbstractContextManager[StreamBytes]:
        self.happens()
        return self.room.stream(who, cancel=lambda: None, is_active=is_active)

    def is_active(self) -> bool:
        return True


class Opened(FakeStream):
    """The learner's end; it answers late."""

    def __init__(self, bundles: Bundles) -> None:
        super().__init__(FakeSink(), "a", 1, lambda: None)
        self.bundles = bundles

    def received(self, serialized: bytes) -> None:
        self.bundles.happens()

    def awaits_message(self, awaits: bool) -> None:
        self.bundles.happens()

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        self.bundles.happens()
        self.seen = rollout.sequence


@pytest.mark.parametrize("messages", [in_frames(1) + in_frames(2), [*RolloutEncoder().encode(make_rollout(1))]])
def test_a_stream_that_ends_gives_everything_back_whenever_that_is(messages: list[bytes]):
    for ends_at in range(1, 100):
        bundles = Bundles(ends_at)
        opened = Opened(bundles)
        bundles.stream.opened(opened)
        bundles.stream.answer(StreamProgress(acknowledged_sequence=0, credit_sequence=2))
        for message in messages:
            bundles.stream.receive(message)
            bundles.happens()
        if bundles.n_left > 0:
            assert bundles.room.n_bytes > 0, "no rollout was answered"
            bundles.stream.answer(StreamProgress(acknowledged_sequence=opened.seen, credit_sequence=9))
            assert bundles.room.n_bytes == 0
            assert ends_at > 2 * len(messages)
            return
        assert bundles.room.n_bytes == 0, f"it ended at point {ends_at}"
        assert not bundles.stream.is_half_sent
        assert opened.closes == [False]
    raise AssertionError("it always ended")
