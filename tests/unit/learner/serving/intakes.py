"""An intake with its queue and its registry, for the tests of both ends of a stream."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rollcast.learner.history.events import forget_event
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.stream import IntakeStream
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import NotReadyError
from rollcast.services.joining.join import JoinOffer
from rollcast.services.policies.policies import PolicySpec
from tests.processes import DEADLINE_S
from tests.rollouts import CARTPOLE_LIKE, always, make_rollout


def offer(**changes: object) -> JoinOffer:
    given = {
        "actor_id": "a",
        "process_nonce": 1,
        "spaces": CARTPOLE_LIKE,
        "n_envs": 2,
        "network": "auto",
        "software_version": "1",
    }
    return JoinOffer(**(given | changes))


def passes_nothing_on(stream: IntakeStream) -> None:
    with pytest.raises(NotReadyError, match="was not taken"):
        stream.accept(make_rollout(sequence=1), is_active=always)


class Intake:
    def __init__(
        self,
        capacity: int = 8,
        network: str = "auto",
        run_history: RunHistory | None = None,
        max_actors: int = 4,
        queue: RolloutQueue | None = None,
        **options: Any,
    ) -> None:
        self.queue = queue or RolloutQueue(capacity)
        self.registry = ActorRegistry(
            max_actors=max_actors, note=forget_event if run_history is None else run_history.note
        )
        self.intake = RolloutIntake(
            self.registry,
            self.queue,
            seeds=ActorSeeds(0, env_seeds=(11, 12)),
            rollout_shape=RolloutShape(CARTPOLE_LIKE, 3, 4),
            policy=PolicySpec(network=network),
            run_history=run_history,
            **options,
        )

    def join_and_open(self, cancel: Callable[[], None] | None = None, **changes: object) -> IntakeStream:
        agreement = self.intake.join(offer(**changes))
        # a function of its own for each stream: the registry tells them apart by it
        cancel = cancel or (lambda: None)
        return self.intake.open_stream(agreement.actor_id, agreement.incarnation, peer="", cancel=cancel)

    def refuse_late(self) -> tuple[threading.Event, threading.Event]:
        """Has the queue refuse rollouts, but not before the second event is set; the first says that one has come."""
        entered, goes_on = threading.Event(), threading.Event()

        def put_late(*_rollout: object, **_options: object) -> bool:
            entered.set()
            return not goes_on.wait(DEADLINE_S)

        self.queue.put = put_late
        return entered, goes_on
