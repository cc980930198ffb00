"""RelayService over a real connection, before a real intake, with messages that a relay would and would not send."""

import contextlib
import dataclasses
import gc
import itertools
import queue
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.stream import IntakeStream
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.client.relay import RelayClient
from rollcast.services.errors import (
    DamagedMessageError,
    DuplicateSequenceError,
    InvalidInputError,
    InvalidRolloutError,
    InvalidTensorError,
    LearnerUnreachableError,
    LimitExceededError,
    MissingMessageError,
    NotReadyError,
    RollcastError,
    ThrottledError,
    UnknownActorError,
    UnreadableMessageError,
)
from rollcast.services.joining.join import Relay
from rollcast.services.joining.join_codec import relay_to_proto
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH, MAX_BUNDLE_PARTS, MAX_RELAYS
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.status.status import ActorState
from rollcast.services.streams.bundle_link import BundleLink
from rollcast.services.streams.bundled_stream import ActorStream, Answer
from rollcast.services.wire.error_status import error_from_rpc, error_from_status
from rollcast.services.wire.seal import seal
from rollcast.v1 import relay_pb2, rollout_pb2
from tests.chaos.proxy import Proxy
from tests.integration.learner_fakes import DEADLINE_S, offer
from tests.processes import wait_until
from tests.relays import LIMITS, Learner, relaying, serve_learner
from tests.rollouts import make_rollout

RELAY = Relay("rack", 77)
OPEN = relay_pb2.StreamBundlesRequest(open=relay_to_proto(RELAY))


@pytest.fixture
def learner() -> Iterator[Learner]:
    with serve_learner() as served:
        yield served


class RawRelay:
    """A relay that says what a test wants."""

    def __init__(self, address: str, *first: bytes) -> None:
        self._address = address
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for message in first:
            self._requests.put(message)
        self._channel = make_channel(address)
        call = self._channel.stream_stream(
            "/rollcast.v1.RelayService/StreamBundles", response_deserializer=relay_pb2.StreamBundlesResponse.FromString
        )
        self.call = call(iter(self._requests.get, None), timeout=DEADLINE_S)
        self._parts: list[relay_pb2.DownwardPart] = []

    def __enter__(self) -> "RawRelay":
        return self

    def __exit__(self, *_error: object) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()

    def send(self, *parts: relay_pb2.UpwardPart) -> None:
        self._requests.put(relay_pb2.StreamBundlesRequest(parts=parts).SerializeToString())

    def part(self) -> relay_pb2.DownwardPart:
        """Waits for the next answer of the learner."""
        while not self._parts:
            self._parts.extend(next(self.call).parts)
        return self._parts.pop(0)

    def error(self) -> RollcastError:
        """Waits for the error of the next part."""
        part = self.part()
        assert part.HasField("status"), part
        return error_from_status(part.status, self._address)

    def end(self) -> RollcastError:
        """Waits for the error that ends the call."""
        with pytest.raises(Exception) as ended:  # noqa: PT011  # gRPC's, from which ours is made
            list(self.call)
        return error_from_rpc(ended.value, self._address)


@contextlib.contextmanager
def connected(learner: Learner, *actors: str) -> Iterator[RawRelay]:
    """Lets actors join through the relay, and opens their streams 1, 2, ..."""
    with RelayClient(learner.address) as client, RawRelay(learner.address, OPEN.SerializeToString()) as raw:
        for number, name in enumerate(actors, 1):
            client.join(offer(name, via=(RELAY,)))
            raw.send(opening(number, name))
            assert raw.part().progress.credit_sequence >= 1
        yield raw


def opening(number: int, actor_id: str, incarnation: int = 1) -> relay_pb2.UpwardPart:
    return relay_pb2.UpwardPart(stream=number, open=rollout_pb2.OpenStream(actor_id=actor_id, incarnation=incarnation))


def rollout_parts(number: int, actor_id: str, sequence: int, **fields: object) -> list[relay_pb2.UpwardPart]:
    rollout = make_rollout(sequence, actor_id=actor_id, **fields)
    return [relay_pb2.UpwardPart(stream=number, message=message) for message in RolloutEncoder().encode(rollout)]


SENT = rollout_parts(1, "a", 1)[0].message
DAMAGED = SENT[:-1] + bytes([SENT[-1] ^ 1])


def test_rollouts_of_several_actors_in_one_message_are_answered_in_one(learner: Learner):
    with connected(learner, "a", "b", "c") as raw:
        raw.send(*(part for n, name in enumerate("abc", 1) for part in rollout_parts(n, name, 1)))
        answers = [raw.part() for _ in range(3)]
    assert [(answer.stream, answer.progress.acknowledged_sequence) for answer in answers] == [(1, 1), (2, 1), (3, 1)]
    assert [rollout.actor_id for rollout in learner.take(3)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("messages", "error", "state"),
    [
        (
            rollout_parts(1, "a", 1, reward=np.full((3, 2), np.inf, np.float32)),
            InvalidTensorError,
            ActorState.REFUSED,
        ),
        (rollout_parts(1, "b", 1), InvalidRolloutError, ActorState.REFUSED),
        ([relay_pb2.UpwardPart(stream=1, message=b"\xff\xff")], UnreadableMessageError, ActorState.LOST),
        ([relay_pb2.UpwardPart(stream=1, message=b"")], InvalidRolloutError, ActorState.REFUSED),
        ([relay_pb2.UpwardPart(stream=1, message=DAMAGED)], DamagedMessageError, ActorState.LOST),
    ],
    ids=["infinite", "of another actor", "noise", "empty", "damaged"],
)
def test_what_an_actor_may_not_send_or_is_damaged_ends_its_stream_alone(
    learner: Learner, messages, error: type, state: ActorState
):
    with connected(learner, "a", "b") as raw:
        # a rollout that comes after that is too late, and ignored
        raw.send(*messages, *rollout_parts(1, "a", 2), *rollout_parts(2, "b", 1))
        assert isinstance(raw.error(), error)
        assert raw.part().progress.acknowledged_sequence == 1
        wait_until(lambda: learner.info("a").state is state, "the registry to know")
    assert [rollout.actor_id for rollout in learner.take(1)] == ["b"]


def test_a_stream_that_has_ended_is_freed_at_once(learner: Learner, monkeypatch: pytest.MonkeyPatch):
    """Without the garbage collector, which comes late if there is much else in memory."""
    streams: weakref.WeakSet[object] = weakref.WeakSet()
    # the learner's end of each, and the relay's call's
    for kind in (IntakeStream, ActorStream):

        def noted(stream: object, *given: object, init: Callable[..., None] = kind.__init__) -> None:
            streams.add(stream)
            init(stream, *given)

        monkeypatch.setattr(kind, "__init__", noted)
    gc.disable()
    try:
        with connected(learner, "a", "b", "c") as raw:
            raw.send(*rollout_parts(1, "a", 1))
            assert raw.part().progress.acknowledged_sequence == 1
            assert len(streams) == 6
            for number in (1, 2):
                raw.send(relay_pb2.UpwardPart(stream=number, ended=relay_pb2.StreamEnd(clean=number == 1)))
            wait_until(lambda: learner.info("b").state is ActorState.LOST, "the registry to know")
            wait_until(lambda: len(streams) == 2, "the streams to be freed")
    finally:
        gc.enable()


def test_messages_of_one_rollout_may_not_be_parted_by_anothers(learner: Learner):
    with RelayClient(learner.address) as client, RawRelay(learner.address, OPEN.SerializeToString()) as raw:
        client.join(offer("large", via=(RELAY,), n_envs=60_000))
        client.join(offer("small", via=(RELAY,)))
        raw.send(opening(1, "large"), opening(2, "small"))
        assert {raw.part().stream, raw.part().stream} == {1, 2}
        header, *frames = rollout_parts(1, "large", 1, n_envs=60_000)
        assert frames
        raw.send(header)
        raw.send(*rollout_parts(2, "small", 1))
        assert isinstance(raw.error(), MissingMessageError)
        assert raw.part().progress.acknowledged_sequence == 1


@pytest.mark.parametrize(
    ("relay", "actor_id", "incarnation"),
    [
        (Relay("rack", 78), "a", 1),
        (Relay("shelf", 77), "a", 1),
        (RELAY, "a", 2),
        (RELAY, "direct", 1),
        (RELAY, "nobody", 1),
    ],
)
def test_a_relay_speaks_only_for_actors_that_have_joined_through_it(learner, relay: Relay, actor_id, incarnation: int):
    with RelayClient(learner.address) as client, connected(learner, "a") as raw:
        client.join(offer("direct"))
        opened = relay_pb2.StreamBundlesRequest(open=relay_to_proto(relay)).SerializeToString()
        with RawRelay(learner.address, opened) as other:
            other.send(opening(1, actor_id, incarnation))
            assert isinstance(other.error(), UnknownActorError)
        raw.send(*rollout_parts(1, "a", 1))
        assert raw.part().progress.acknowledged_sequence == 1, "the actor's own stream goes on"


def test_an_actor_that_has_joined_through_a_relay_opens_no_stream_itself(learner: Learner):
    with RelayClient(learner.address) as client:
        client.join(offer("a", via=(RELAY,)))
        with pytest.raises(UnknownActorError, match="itself last"):
            list(client.open_rollout_stream("a", 1).responses())


def test_a_stream_that_another_replaces_ends_with_words(learner: Learner):
    with connected(learner, "a") as raw, RelayClient(learner.address) as client:
        client.join(offer("a", incarnation=1))
        uplink = client.open_rollout_stream("a", 1)
        next(answers := uplink.responses())
        assert isinstance(raw.error(), NotReadyError)
        uplink.cancel()
        del answers


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([relay_pb2.UpwardPart(stream=1)], InvalidRolloutError),
        ([opening(0, "a")], InvalidRolloutError),
        ([opening(2, "a"), opening(2, "a")], InvalidRolloutError),
        ([relay_pb2.UpwardPart(stream=9, message=b"?")] * (MAX_BUNDLE_PARTS + 1), LimitExceededError),
    ],
)
def test_what_no_relay_sends_ends_the_call(learner: Learner, parts: list[relay_pb2.UpwardPart], error: type):
    with connected(learner) as raw:
        raw.send(*parts)
        assert isinstance(raw.end(), error)


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (relay_pb2.StreamBundlesRequest(parts=[opening(1, "a")]), InvalidRolloutError),
        (relay_pb2.StreamBundlesRequest(open=relay_to_proto(RELAY), parts=[opening(1, "a")]), InvalidRolloutError),
        (
            relay_pb2.StreamBundlesRequest(open=relay_to_proto(RELAY), waiting=[relay_to_proto(RELAY)] * 65),
            InvalidRolloutError,
        ),
        (relay_pb2.StreamBundlesRequest(open=rollout_pb2.Relay(relay_id="a b", nonce=1)), InvalidInputError),
        (relay_pb2.StreamBundlesRequest(open=rollout_pb2.Relay(relay_id="rack")), InvalidInputError),
    ],
)
def test_a_call_begins_with_the_relays_name(learner: Learner, first: relay_pb2.StreamBundlesRequest, error: type):
    with RawRelay(learner.address, first.SerializeToString()) as raw:
        assert isinstance(raw.end(), error)


def test_parts_of_streams_that_are_not_open_are_ignored(learner: Learner):
    with connected(learner, "a") as raw:
        raw.send(
            relay_pb2.UpwardPart(stream=5, message=b"?"), relay_pb2.UpwardPart(stream=6, ended=relay_pb2.StreamEnd())
        )
        raw.send(*rollout_parts(1, "a", 1))
        assert raw.part().progress.acknowledged_sequence == 1


def test_a_damaged_bundle_ends_the_call_and_may_be_tried_again(learner: Learner):
    message = bytearray(seal(relay_pb2.StreamBundlesRequest(parts=[opening(1, "abc")]).SerializeToString()))
    message[6] ^= 1
    with RawRelay(learner.address, seal(OPEN.SerializeToString()), bytes(message)) as raw:
        assert isinstance(raw.end(), DamagedMessageError)
    unsealed = relay_pb2.StreamBundlesRequest(parts=[opening(1, "abc")]).SerializeToString()
    with RawRelay(learner.address, seal(OPEN.SerializeToString()), unsealed) as raw:
        assert isinstance(raw.end(), DamagedMessageError)


def test_a_lost_bundle_ends_the_call_once_the_next_has_come(learner: Learner):
    first, third = (
        relay_pb2.StreamBundlesRequest(open=OPEN.open, number=1),
        relay_pb2.StreamBundlesRequest(parts=[opening(2, "def")], number=3),
    )
    with RawRelay(learner.address, first.SerializeToString(), third.SerializeToString()) as raw:
        assert next(raw.call).number == 1
        with pytest.raises(DamagedMessageError, match="it is number 3 of its call, and number 2 has not arrived"):
            raise raw.end()


class Answered:
    """A channel whose call has the given answers."""

    def __init__(self, *answers: relay_pb2.StreamBundlesResponse) -> None:
        self._answers = iter([seal(answer.SerializeToString()) for answer in answers])

    def stream_stream(self, *_: object, **__: object):
        return lambda _requests: self

    def __iter__(self) -> Iterator[bytes]:
        return self._answers

    def add_callback(self, _callback: object) -> None: ...

    def cancel(self) -> None: ...


def test_a_lost_message_of_answers_ends_the_relays_call():
    numbers = (1, 2, 4)
    link = BundleLink(Answered(*(relay_pb2.StreamBundlesResponse(number=number) for number in numbers)), "there", RELAY)
    ended: list[Answer] = []
    link.open_stream("a", 1, ended.append)
    with pytest.raises(DamagedMessageError, match="it is number 4 of its call, and number 3 has not arrived"):
        link.run(lambda _nonce: None)
    assert [type(error) for error in ended] == [NotReadyError], "its actors join again"


def test_one_address_has_all_places_until_another_asks_for_one(learner: Learner):
    with contextlib.ExitStack() as stack:
        relays = []
        for _ in range(MAX_RELAYS):
            relays.append(stack.enter_context(RawRelay(learner.address, OPEN.SerializeToString())))
            next(relays[-1].call)  # the learner has answered
        with RawRelay(learner.address, OPEN.SerializeToString()) as raw:
            error = raw.end()
        assert isinstance(error, ThrottledError)
        assert error.limit == "max_relays"
        proxy = Proxy(learner.server.port, seed=1, own_host="127.0.0.2")
        stack.callback(proxy.close)
        newcomer = stack.enter_context(RawRelay(proxy.address, OPEN.SerializeToString()))
        assert next(newcomer.call).learner_nonce
        assert isinstance(relays[-1].end(), LearnerUnreachableError)
        with RelayClient(learner.address) as client:
            client.join(offer("a", via=(RELAY,)))
        relays[0].send(opening(1, "a"))
        assert relays[0].part().progress.credit_sequence >= 1, "the others keep theirs"


def strangers() -> Iterator[relay_pb2.UpwardPart]:
    return (opening(number, f"stranger-{number}") for number in itertools.count(2))


def openings_of_one() -> Iterator[relay_pb2.UpwardPart]:
    return (opening(number, "a") for number in itertools.count(2))


def unreadable() -> Iterator[relay_pb2.UpwardPart]:
    for number, part in enumerate(openings_of_one(), 2):
        yield part
        yield relay_pb2.UpwardPart(stream=number, message=b"\xff\xff")


def parts_of_no_stream() -> Iterator[relay_pb2.UpwardPart]:
    return itertools.repeat(relay_pb2.UpwardPart(stream=1 << 40, message=b"?"))


@pytest.mark.parametrize("flood", [strangers, openings_of_one, unreadable, parts_of_no_stream])
def test_one_call_opens_and_errs_no_faster_than_an_address_may_call(flood):
    limits = dataclasses.replace(LIMITS, calls_per_second_per_host=20.0)
    with serve_learner(limits=limits) as learner, connected(learner, "a") as raw:
        raw.send(*itertools.islice(flood(), MAX_BUNDLE_PARTS))
        met = ("127.0.0.1", "calls_per_second_per_host")
        refusals = learner.server.refusals
        wait_until(lambda: met in {(one.who, one.limit) for one in refusals.lately()}, "it is held back", DEADLINE_S)
        with LearnerClient(learner.address) as client:
            client.join(offer("direct"))
            uplink = client.open_rollout_stream("direct", 1)
            responses = uplink.responses()
            next(responses)
            for sequence in range(1, 21):
                uplink.send(make_rollout(sequence, actor_id="direct"))
                assert next(responses).acknowledged_sequence == sequence
                assert learner.take(1)
            uplink.cancel()


def test_an_actor_behind_a_relay_opens_no_more_than_ten_streams_a_second(learner: Learner):
    with connected(learner, "a", "b") as raw:
        raw.send(*(opening(number, "a") for number in range(3, 203)), opening(203, "b"))
        answers = {}
        while 203 not in answers:
            part = raw.part()
            if part.HasField("status"):
                answers[part.stream] = error_from_status(part.status, learner.address)
            else:
                answers[part.stream] = None
        limits = [error.limit for error in answers.values() if error is not None]
        assert limits.count("max_openings_per_s") > 100
        assert answers[203] is None, "another actor of the same relay is served"


def test_the_status_has_no_long_names_of_actors_behind_a_relay(learner: Learner):
    with connected(learner, "a") as raw:
        raw.send(*(opening(number, "x" * 100_000) for number in range(2, 32)))

        def names() -> list[str]:
            return [one.who for one in learner.server.refusals.lately() if one.limit == "max_openings_per_s"]

        wait_until(names, "too many openings")
        assert all(len(name) < 3 * MAX_ACTOR_ID_LENGTH for name in names())


def test_rollouts_without_credit_are_refused_before_they_are_kept():
    with serve_learner(queue=RolloutQueue(2)) as learner, connected(learner, "a", "b") as raw:
        raw.send(*(part for sequence in range(1, 50) for part in rollout_parts(1, "a", sequence)))
        raw.send(*rollout_parts(2, "b", 1))
        answers = [raw.part() for _ in range(2)]
        assert answers[0].progress.acknowledged_sequence == 1
        error = error_from_status(answers[1].status, learner.address)
        assert isinstance(error, LimitExceededError)
        assert "was credited up to" in str(error)
        assert learner.info("a").state is ActorState.REFUSED
        assert learner.take(1)
        assert learner.take(1)[0].actor_id == "b", "its own stream alone has ended"


def test_a_rollout_that_comes_again_and_again_is_refused_before_it_is_kept():
    with serve_learner(queue=RolloutQueue(2)) as learner, connected(learner, "a") as raw:
        raw.send(*rollout_parts(1, "a", 1))
        assert raw.part().progress.acknowledged_sequence == 1
        raw.send(*rollout_parts(1, "a", 2) * 50)
        assert isinstance(raw.error(), DuplicateSequenceError)


def test_a_relay_passes_on_no_rollout_without_credit():
    with serve_learner(queue=RolloutQueue(2)) as learner, relaying(learner.address) as relay:
        with RelayClient(relay.address) as client, RawRelay(relay.address, OPEN.SerializeToString()) as raw:
            client.join(offer("a", via=(RELAY,)))
            raw.send(opening(1, "a"))
            credit = raw.part().progress.credit_sequence
            raw.send(*(part for sequence in range(1, 50) for part in rollout_parts(1, "a", sequence)))
            while not (part := raw.part()).HasField("status"):
                assert part.progress.acknowledged_sequence == 1
            assert isinstance(error_from_status(part.status, relay.address), LimitExceededError)
            assert relay.intake.n_rollouts <= credit + 1


def test_a_failure_ends_its_stream_alone(learner: Learner, caplog: pytest.LogCaptureFixture):
    failed = rollout_pb2.ActorFailure(exception_type="ValueError", message="m", traceback="t")
    message = rollout_pb2.StreamRolloutsRequest(failure=failed).SerializeToString()
    with connected(learner, "a", "b") as raw:
        raw.send(*[relay_pb2.UpwardPart(stream=1, message=message)] * 9, *rollout_parts(2, "b", 1))
        assert raw.part().progress.acknowledged_sequence == 1
        wait_until(lambda: "actor a failed" in caplog.text, "the failure")
        assert learner.info("a").state is ActorState.FAILED
    assert sum("actor a failed" in record.getMessage() for record in caplog.records) == 1
