"""A learner in memory, behind the three Protocols, and a server that serves it."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import (
    DuplicateSequenceError,
    MissingMessageError,
    NotReadyError,
    RefusedError,
    RollcastError,
    UnknownActorError,
)
from rollcast.services.history.history import HistoryPoint, HistoryUpdate, RunFacts
from rollcast.services.joining.activity import ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinAgreement, JoinedActor, JoinOffer
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from rollcast.services.policies.evaluated import OnEnd, WaitForVersion
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.server.server import GrpcServer, make_server
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, check_spaces_match
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from tests.processes import DEADLINE_S

# Options of a client whose window does not grow, as that of other clients does: it is full soon.
SMALL_WINDOW = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4096),
    ("grpc.use_local_subchannel_pool", 1),
)

SPACES: EnvironmentSpaces = {
    "0": SubstepSpaces(observation=spaces.Box(-np.inf, np.inf, (4,), np.float32), action=spaces.Discrete(2))
}


def offer(actor_id: str = "a", **changes: object) -> JoinOffer:
    fields = {
        "actor_id": actor_id,
        "process_nonce": 7,
        "spaces": SPACES,
        "n_envs": 2,
        "network": "auto",
        "software_version": "test",
    }
    return JoinOffer(**(fields | changes))


@dataclass
class FakeStream:
    sink: "FakeSink"
    actor_id: str
    incarnation: int
    cancel: Callable[[], None]
    rollout_shape: RolloutShape = field(default_factory=lambda: RolloutShape(SPACES, 3, 2))
    activity_interval_s: float = 0.0
    activities: list[ActorActivity] = field(default_factory=list)
    came_alone: list[bool] = field(default_factory=list)
    seen: int = 0
    n_received: int = 0
    closes: list[bool] = field(default_factory=list)

    @property
    def joined(self) -> JoinedActor:
        return JoinedActor(
            actor_id=self.actor_id,
            incarnation=self.incarnation,
            rollout_shape=self.rollout_shape,
            activity_interval_s=self.activity_interval_s,
        )

    def received(self, serialized: bytes) -> None:
        self.n_received += 1

    def progress(self) -> StreamProgress:
        return StreamProgress(acknowledged_sequence=self.seen, credit_sequence=self.seen + self.sink.credit)

    def accept(self, rollout: Rollout, *, is_active: Callable[[], bool]) -> StreamProgress:
        if self.sink.accept_error is not None:
            raise self.sink.accept_error
        if rollout.sequence <= self.seen:
            raise DuplicateSequenceError(
                f"actor {self.actor_id!r} sent rollout {rollout.sequence} twice; expected once"
            )
        if self.sink.refuses_gaps and rollout.sequence > self.seen + 1:
            raise MissingMessageError(f"rollout {rollout.sequence} came after {self.seen}; expected all; join again")
        deadline = time.monotonic() + DEADLINE_S
        with self.sink.changed:
            self.sink.waiting += 1
            self.sink.changed.notify_all()
            while len(self.sink.rollouts) >= self.sink.capacity:
                self.sink.changed.wait(0.1)
                if not is_active():
                    raise NotReadyError("the actor went away")
                assert time.monotonic() < deadline, "the queue stayed full"
            self.sink.waiting -= 1
            self.sink.rollouts.append(rollout)
            self.sink.changed.notify_all()
        self.seen = rollout.sequence
        if self.sink.ended:
            return StreamProgress(acknowledged_sequence=self.seen, credit_sequence=self.seen, end_of_training=True)
        return self.progress()

    def await_credit(self, *, is_active: Callable[[], bool]) -> StreamProgress:
        return self.progress()

    def take_policy(self, *, holds_version: int | None = None) -> EncodedPolicy | None:
        with self.sink.changed:
            self.sink.held_versions.append(holds_version)
            policy, self.sink.policy = self.sink.policy, None
            return policy

    def awaits_message(self, awaits: bool) -> None:
        self.sink.awaits = awaits

    def acted(self, activity: ActorActivity, *, is_alone: bool) -> None:
        with self.sink.changed:
            self.activities.append(activity)
            self.came_alone.append(is_alone)
            self.sink.changed.notify_all()

    def fail(self, failure: ActorFailure) -> None:
        with self.sink.changed:
            self.sink.failures.append(failure)
            self.sink.changed.notify_all()

    def rejected(self, error: RollcastError) -> None:
        with self.sink.changed:
            self.sink.rejections.append(error)
            self.sink.changed.notify_all()

    def close(self, *, clean: bool) -> None:
        with self.sink.changed:
            self.closes.append(clean)
            self.sink.changed.notify_all()


class FakeSink:
    """`changed` guards everything; `wait_for` waits with a deadline."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rollouts: list[Rollout] = []
        self.failures: list[ActorFailure] = []
        # the policy for the next answer, and which versions the actors said that they had
        self.policy: EncodedPolicy | None = None
        self.held_versions: list[int | None] = []
        self.rejections: list[RollcastError] = []
        self.streams: list[FakeStream] = []
        self.joined: dict[str, JoinAgreement] = {}
        self.capacity = 100
        self.credit = 4
        self.waiting = 0
        self.ended = False
        self.learner_nonce = 1
        # whether a stream begins where the last one ended, as a learner's do
        self.resumes = False
        # whether it misses rollouts that were left out, as a learner does
        self.refuses_gaps = False
        self.join_error: Exception | None = None
        self.accept_error: Exception | None = None
        # whether the newest stream waits for what its actor sends; and what an actor is told that asks
        self.awaits = False
        self.awaiting_s = 0.0
        self.policy_version = 0
        self.acknowledged_sequence = 0
        self.activity_interval_s = 0.0
        # where actors are sent that follow; and the offers of all
        self.elsewhere = ""
        self.offers: list[JoinOffer] = []

    def join(self, offer: JoinOffer) -> JoinAgreement:
        self.offers.append(offer)
        if self.join_error is not None:
            raise self.join_error
        check_spaces_match(SPACES, offer.spaces, expected_side="the learner", offered_side=f"actor {offer.actor_id!r}")
        agreement = JoinAgreement(
            actor_id=offer.actor_id,
            slot=len(self.joined),
            incarnation=1,
            acknowledged_sequence=0,
            n_rollout_steps=3,
            env_seed=1,
            agent_seed=2,
            policy=PolicySpec(),
            max_message_bytes=4 << 20,
            n_envs=offer.n_envs or 2,
            activity_interval_s=self.activity_interval_s,
        )
        if self.elsewhere and offer.follows_redirect:
            return dataclasses.replace(agreement, learner_address=self.elsewhere)
        known = self.joined.setdefault(offer.actor_id, agreement)
        return dataclasses.replace(
            known,
            learner_nonce=self.learner_nonce,
            awaiting_s=self.awaiting_s,
            policy_version=self.policy_version,
            acknowledged_sequence=self.acknowledged_sequence,
        )

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> FakeStream:
        assert peer
        if actor_id not in self.joined:
            raise UnknownActorError(f"actor {actor_id!r} has not joined; expected Join before; join")
        stream = FakeStream(self, actor_id, incarnation, cancel, activity_interval_s=self.activity_interval_s)
        with self.changed:
            stream.seen = len(self.rollouts) if self.resumes else 0
            self.streams.append(stream)
            self.changed.notify_all()
        return stream

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), "it did not happen by the deadline"


class FakeSource:
    """A source of policies that tests publish; each is encoded once."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.encoded: EncodedPolicy | None = None
        self.n_encodings = 0
        self.subscribed: list[str] = []
        self.ended = False
        self.spaces = SPACES
        self.state_size = 0
        self.frame_stack = 1
        self.previous: Mapping[str, np.ndarray] | None = None

    def publish(self, version: int, state: Mapping[str, np.ndarray]) -> None:
        encoded = encode_policy(version, state)
        with self.changed:
            self.encoded = encoded
            self.n_encodings += 1
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def newest(self) -> EncodedPolicy:
        if self.encoded is None:
            raise NotReadyError("there is no policy yet; expected one; try again with backoff")
        return self.encoded

    @contextlib.contextmanager
    def subscription(
        self, *, after_version: int, actor_id: str = "", on_end: OnEnd | None = None
    ) -> Iterator[WaitForVersion]:
        self.subscribed.append(actor_id)
        version = after_version

        def wait_for_version(timeout_s: float) -> EncodedPolicy | None:
            nonlocal version
            with self.changed:
                self.changed.wait_for(
                    lambda: self.ended or (self.encoded and self.encoded.version > version), timeout_s
                )
                if self.encoded is None or self.encoded.version <= version:
                    return None
                version = self.encoded.version
                return self.encoded

        yield wait_for_version

    def act(
        self,
        observation: Mapping[str, np.ndarray],
        *,
        substep_key: str,
        deterministic: bool,
        state: np.ndarray | None = None,
        previous: Mapping[str, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, int]:
        assert substep_key == "0"
        assert (state is None) is (not self.state_size)
        self.previous = previous
        if state is not None:
            state += observation[""][:, :1]
        version = self.newest().version
        return (observation[""][:, 0] > 0).astype(np.int64) + int(deterministic) * 0, version


class FakeControl:
    def __init__(self) -> None:
        self.phase = Phase.TRAINING
        self.calls: list[str] = []
        self.run_dir = "/run"

    def describe(self) -> LearnerDescription:
        return LearnerDescription(
            spaces=SPACES,
            policy=PolicySpec(),
            n_rollout_steps=3,
            batch_size=4,
            n_envs=2,
            algorithm="fake",
            software_version="test",
        )

    def status(self) -> LearnerStatus:
        return LearnerStatus(phase=self.phase, env_steps=12, mean_return=1.5, waiting_for="rollouts")

    def actors(self) -> Sequence[ActorInfo]:
        return [ActorInfo(actor_id="a", slot=0, incarnation=1, state=ActorState.STREAMING)]

    def pause(self) -> None:
        if self.phase is Phase.FINISHED:
            raise RefusedError("training has ended; expected it to run; start it again")
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def save_checkpoint(self) -> tuple[str, int]:
        if not self.run_dir:
            raise RefusedError("the run keeps no directory; expected one; set --run-dir")
        return f"{self.run_dir}/checkpoint", 3

    def request_stop(self) -> None:
        self.calls.append("stop")

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.FINISHED

    def history(self, after_s: float | None) -> HistoryUpdate:
        """Returns the next of an endless row of points, one a call."""
        now_s = 1.0 if after_s is None else after_s + 1.0
        return HistoryUpdate(
            now_s=now_s,
            run=RunFacts(env_id="Fake-v0", algorithm="fake", run_dir=self.run_dir) if after_s is None else None,
            status=self.status(),
            actors=tuple(self.actors()),
            points=(HistoryPoint(time_s=now_s, interval_s=1.0, env_steps=12),),
        )


@dataclass
class FakeLearner:
    sink: FakeSink
    source: FakeSource
    control: FakeControl
    server: GrpcServer
    address: str


@contextlib.contextmanager
def serve(address: str = "127.0.0.1:0", **options: Any) -> Iterator[FakeLearner]:
    sink, source, control = FakeSink(), FakeSource(), FakeControl()
    server = make_server(address, sink=sink, source=source, control=control, history=control, **options)
    server.start()
    try:
        yield FakeLearner(sink, source, control, server, server.address)
    finally:
        # subscriptions look once a second whether their server stops
        source.end()
        server.stop(0.0)
