"""A server whose joins, rollouts and actors are a real learner's; rollouts stay in its queue, or are taken at once."""

import contextlib
import dataclasses
from collections.abc import Iterator

from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.rounds import Rounds
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.services.client.client import LearnerClient
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.history.history import HistoryUpdate
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.server.server import make_server
from rollcast.services.status.status import ActorInfo
from tests.integration.learner_fakes import SPACES, FakeControl, FakeSource


class IntakeControl(FakeControl):
    """Tells of the actors of an intake, and of what has happened to them."""

    def __init__(self, registry: ActorRegistry, memory: RunHistory) -> None:
        super().__init__()
        self._registry = registry
        self._memory = memory

    def actors(self) -> list[ActorInfo]:
        return self._registry.infos()

    def history(self, after_s: float | None) -> HistoryUpdate:
        return dataclasses.replace(super().history(after_s), events=self._memory.news(after_s).events)


@contextlib.contextmanager
def serve_intake(
    limits: Limits, queue: RolloutQueue | None = None, rounds: Rounds | None = None
) -> Iterator[tuple[LearnerClient, ActorRegistry]]:
    """Serves T = 3, for the body."""
    memory = RunHistory()
    registry = ActorRegistry(max_actors=limits.max_actors, join_lease_s=limits.join_lease_s, note=memory.note)
    control = IntakeControl(registry, memory)
    intake = RolloutIntake(
        registry,
        queue or RolloutQueue(100),
        seeds=ActorSeeds(0),
        rollout_shape=RolloutShape(SPACES, 3, 2),
        policy=PolicySpec(),
        rule=CreditRule(rounds=rounds),
    )
    server = make_server(
        "127.0.0.1:0",
        sink=intake,
        source=FakeSource(),
        control=control,
        history=control,
        relays=intake,
        limits=limits,
    )
    server.start()
    try:
        with LearnerClient(server.address) as client:
            yield client, registry
    finally:
        server.stop(0.0)
