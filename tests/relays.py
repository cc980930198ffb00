"""A learner whose intake is real, relays before it, and actors that play rollouts out of thin air."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.stream import WriteAheadLog
from rollcast.services.client.client import LearnerClient
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout, StreamProgress
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.server import GrpcServer, make_server
from rollcast.services.status.status import ActorInfo
from rollcast.services.streams.uplink import RolloutUplink
from rollcast.tools.relay.relay import RollcastRelay
from tests.integration.learner_fakes import SPACES, FakeControl, FakeSource, offer
from tests.processes import wait_until
from tests.rollouts import make_rollout

N_ROLLOUT_STEPS = 3
LIMITS = Limits(max_actors=32)


@dataclass
class Learner:
    """A learner that learns nothing."""

    registry: ActorRegistry
    queue: RolloutQueue
    intake: RolloutIntake
    source: FakeSource
    server: GrpcServer

    @property
    def address(self) -> str:
        return self.server.address

    def take(self, n_rollouts: int) -> list[Rollout]:
        """Takes rollouts from the queue, as a batcher does."""
        taken: list[Rollout] = []
        while len(taken) < n_rollouts:
            piece = self.queue.get(1 << 20, 10.0)
            assert piece is not None, f"only {len(taken)} of {n_rollouts} rollouts came"
            taken.append(piece.rollout)
        return taken

    def info(self, actor_id: str) -> ActorInfo:
        return next(info for info in self.registry.infos() if info.actor_id == actor_id)


@contextlib.contextmanager
def serve_learner(
    address: str = "127.0.0.1:0",
    *,
    queue: RolloutQueue | None = None,
    rule: CreditRule | None = None,
    durable: WriteAheadLog | None = None,
    evaluations: Evaluations | None = None,
    policies: PolicyPublisher | None = None,
    limits: Limits = LIMITS,
    security: ServerSecurity = PLAIN_SERVER,
    serves_relays: bool = True,
) -> Iterator[Learner]:
    registry = ActorRegistry(max_actors=limits.max_actors, join_lease_s=limits.join_lease_s)
    queue = queue or RolloutQueue(100)
    intake = RolloutIntake(
        registry,
        queue,
        seeds=ActorSeeds(0),
        rollout_shape=RolloutShape(SPACES, N_ROLLOUT_STEPS, 2),
        policy=PolicySpec(),
        rule=rule,
        durable=durable,
        evaluations=evaluations,
    )
    source = FakeSource()
    source.publish(1, {"w": np.zeros(3, np.float32)})
    server = make_server(
        address,
        sink=intake,
        source=policies or source,
        control=FakeControl(),
        relays=intake if serves_relays else None,
        evaluators=evaluations,
        limits=limits,
        security=security,
    )
    server.start()
    try:
        yield Learner(registry, queue, intake, source, server)
    finally:
        queue.close()
        server.stop(0.0)


_names = itertools.count(1)


@contextlib.contextmanager
def relaying(*learner_addresses: str, address: str = "127.0.0.1:0", **options: object) -> Iterator[RollcastRelay]:
    """Runs a relay in this process, and waits until it has its learner."""
    waits = bool(options.pop("waits", True))
    relay = RollcastRelay(address, learner_addresses, f"relay-{next(_names)}", **{"limits": LIMITS, **options})
    relay.start()
    try:
        if waits:
            wait_until(lambda: relay.link.is_open, "the relay to have its learner")
        yield relay
    finally:
        relay.stop()
        relay.close()


def numbered(rollout: Rollout, actor_id: str, sequence: int, **changes: object) -> Rollout:
    return dataclasses.replace(rollout, actor_id=actor_id, sequence=sequence, **changes)


@contextlib.contextmanager
def streaming(address: str, actor_id: str = "a", **changes: object) -> Iterator[RolloutUplink]:
    """Joins and opens a stream."""
    with LearnerClient(address) as client:
        agreement = client.join(offer(actor_id, **changes))
        uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
        try:
            yield uplink
        finally:
            uplink.cancel()


def send(uplink: RolloutUplink, actor_id: str, n_rollouts: int) -> StreamProgress:
    """Sends rollouts as credit comes, and returns the last answer."""
    for sequence in range(1, n_rollouts + 1):
        uplink.send(make_rollout(sequence, actor_id=actor_id))
    for progress in uplink.responses():
        if progress.acknowledged_sequence == n_rollouts:
            return progress
    raise AssertionError("the stream ended")
