"""An intake with its queue and its registry, for the tests of both ends of a stream."""

from collections.abc import Callable

from rollcast.learner.history.events import forget_event
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.stream import IntakeStream
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.joining.join import JoinOffer
from rollcast.services.policies.policies import PolicySpec
from tests.rollouts import CARTPOLE_LIKE


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


class Intake:
    """An intake with its queue and registry."""

    def __init__(
        self,
        capacity: int = 8,
        rule: CreditRule | None = None,
        network: str = "auto",
        run_history: RunHistory | None = None,
        max_actors: int = 4,
        assignment: ActorAssignment = ONE_LEARNER,
    ) -> None:
        self.queue = RolloutQueue(capacity)
        self.registry = ActorRegistry(
            max_actors=max_actors, note=forget_event if run_history is None else run_history.note
        )
        self.intake = RolloutIntake(
            self.registry,
            self.queue,
            seeds=ActorSeeds(0, env_seeds=(11, 12)),
            rollout_shape=RolloutShape(CARTPOLE_LIKE, 3, 4),
            policy=PolicySpec(network=network),
            rule=rule,
            run_history=run_history,
            assignment=assignment,
        )

    def join_and_open(self, cancel: Callable[[], None] | None = None, **changes: object) -> IntakeStream:
        agreement = self.intake.join(offer(**changes))
        # a function of its own for each stream: the registry tells them apart by it
        cancel = cancel or (lambda: None)
        return self.intake.open_stream(agreement.actor_id, agreement.incarnation, peer="", cancel=cancel)
