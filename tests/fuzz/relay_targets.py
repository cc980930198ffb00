"""Decoders of what relays send their learner, and of its answers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidRolloutError, UnknownActorError
from rollcast.services.joining.join import Relay
from rollcast.services.limits.bytes_in_flight import BytesInFlight
from rollcast.services.limits.limits import Limits
from rollcast.services.limits.refusals import Refusals
from rollcast.services.rollouts.codec import RolloutEncoder
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.streams.bundle_link import BundleLink
from rollcast.services.streams.bundle_service import RelayCall, RelayToll
from rollcast.services.streams.bundled_stream import Answer
from rollcast.services.wire.error_status import error_to_status
from rollcast.services.wire.seal import MessageChain, parse_sealed
from rollcast.v1 import relay_pb2, rollout_pb2
from tests.fuzz.oracle import Target
from tests.fuzz.protobuf_mutator import message_mutator
from tests.fuzz.rollout_targets import FRAME_STACK, SMALL, STATE_SIZE, small_rollout
from tests.integration.learner_fakes import FakeSink, FakeStream

_RELAY = Relay("relay", 1)
_REFUSAL = error_to_status(InvalidRolloutError("what is wrong")).SerializeToString()


class _Stream(FakeStream):
    """An actor's stream that takes everything at once."""

    answer: Callable[[Answer], None]

    def submit(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> None:
        self.seen = rollout.sequence
        self.answer(self.progress())


class _Learner:
    """A `BundleSink` with two actors, a and b."""

    def admit(self, relay: Relay, waiting: Sequence[Relay]) -> int:
        return 1

    def open_bundled(
        self, actor_id: str, incarnation: int, *, answer: Callable[[Answer], None], cancel: Any, **_: Any
    ) -> _Stream:
        if actor_id not in ("a", "b"):
            raise UnknownActorError("it has not joined")
        stream = _Stream(FakeSink(), actor_id, incarnation, cancel, RolloutShape(SMALL, 2, 2, STATE_SIZE, FRAME_STACK))
        stream.answer = answer
        answer(stream.progress())
        return stream


class _Call:
    """A call of gRPC that is open."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        pass


def _opening(number: int, actor_id: str) -> relay_pb2.UpwardPart:
    return relay_pb2.UpwardPart(stream=number, open=rollout_pb2.OpenStream(actor_id=actor_id, incarnation=1))


def _played(number: int, actor_id: str) -> list[relay_pb2.UpwardPart]:
    rollout = small_rollout()
    rollout = type(rollout)(**{**{name: getattr(rollout, name) for name in rollout.__slots__}, "actor_id": actor_id})
    return [relay_pb2.UpwardPart(stream=number, message=message) for message in RolloutEncoder().encode(rollout)]


def bundles(folder: Path) -> Target:
    """A message of a relay: streams that open, go on and end."""
    seeds = tuple(
        relay_pb2.StreamBundlesRequest(parts=parts).SerializeToString()
        for parts in (
            [_opening(1, "a"), *_played(1, "a"), _opening(2, "b"), *_played(2, "b")],
            [_opening(1, "a"), relay_pb2.UpwardPart(stream=1, ended=relay_pb2.StreamEnd(status=_REFUSAL))],
            [_opening(1, "a"), _opening(2, "nobody"), relay_pb2.UpwardPart(stream=1, ended=relay_pb2.StreamEnd())],
        )
    )

    def decode(content: bytes) -> Sequence[relay_pb2.StreamBundlesResponse]:
        call = RelayCall(
            _Learner(), _RELAY, _Call(), BytesInFlight(), 1 << 20, RelayToll(Limits(), Refusals()), MessageChain()
        )
        try:
            call.take(parse_sealed(relay_pb2.StreamBundlesRequest, content))
        finally:
            call.end()
        return list(call.answers())

    return Target(
        name="bundles",
        decode=decode,
        seeds=seeds,
        mutate=message_mutator(relay_pb2.StreamBundlesRequest, seeds),
        limit_bytes=1 << 20,
        bytes_per_byte=512,
    )


class _Channel:
    """A channel whose call is never answered."""

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., Any]:
        return lambda _requests: self

    def add_callback(self, _callback: Any) -> None:
        pass


def bundle_answers(folder: Path) -> Target:
    """A learner's answers to a relay."""
    progress = rollout_pb2.StreamRolloutsResponse(acknowledged_sequence=3, credit_sequence=5, min_policy_version=2)
    seeds = tuple(
        relay_pb2.StreamBundlesResponse(parts=parts, learner_nonce=3).SerializeToString()
        for parts in (
            [relay_pb2.DownwardPart(stream=1, progress=progress), relay_pb2.DownwardPart(stream=2, status=_REFUSAL)],
            [relay_pb2.DownwardPart(stream=1, progress=rollout_pb2.StreamRolloutsResponse(end_of_training=True))],
        )
    )

    def decode(content: bytes) -> Sequence[Answer]:
        taken: list[Answer] = []
        link = BundleLink(_Channel(), "learner", _RELAY)  # type: ignore[arg-type]  # only what it uses
        for name in ("a", "b"):
            link.open_stream(name, 1, taken.append)
        link.take(parse_sealed(relay_pb2.StreamBundlesResponse, content))
        assert all(isinstance(answer, StreamProgress | Exception) for answer in taken)
        return taken

    return Target(
        name="bundle answers",
        decode=decode,
        seeds=seeds,
        mutate=message_mutator(relay_pb2.StreamBundlesResponse, seeds),
        bytes_per_byte=128,
    )
