"""A server whose joins and rollouts are a real learner's; what comes in stays in its queue, or is taken at once."""

import contextlib
from collections.abc import Iterator

from rollcast.learner.ingest.intake import RolloutIntake
from rollcast.learner.ingest.queue import RolloutQueue
from rollcast.learner.ingest.registry import ActorRegistry
from rollcast.learner.ingest.seeds import ActorSeeds
from rollcast.services.client.client import LearnerClient
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.server.server import make_server
from tests.integration.learner_fakes import SPACES, FakeControl, FakeSource


@contextlib.contextmanager
def serve_intake(limits: Limits, queue: RolloutQueue | None = None) -> Iterator[tuple[LearnerClient, ActorRegistry]]:
    """Serves T = 5, for the body."""
    registry = ActorRegistry(max_actors=limits.max_actors, join_lease_s=limits.join_lease_s)
    intake = RolloutIntake(
        registry,
        queue or RolloutQueue(100),
        seeds=ActorSeeds(0),
        spaces=SPACES,
        policy=PolicySpec(),
        n_rollout_steps=3,
        envs_per_actor=2,
    )
    server = make_server("127.0.0.1:0", sink=intake, source=FakeSource(), control=FakeControl(), limits=limits)
    server.start()
    try:
        with LearnerClient(server.address) as client:
            yield client, registry
    finally:
        server.stop(0.0)
