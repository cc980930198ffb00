"""The bound on staleness, over every schedule of actors of equal speed and a learner of any."""

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from learner.actor_registry import ActorRegistry
from learner.rollout_intake import IntakeStream, RolloutIntake
from learner.rollout_queue import RolloutQueue
from services.errors import NotReadyError
from services.joining import JoinOffer
from services.policies import PolicySpec
from services.rollouts import Rollout
from tests.rollout_samples import CARTPOLE_LIKE, make_rollout


class Learner:
    """A learner without a network: one update a batch, one version an update."""

    def __init__(self, capacity: int, batch_size: int) -> None:
        self.version = 1
        self.lags: list[int] = []
        self.queue = RolloutQueue(capacity)
        self._batch_size = batch_size
        self._filled = 0

    def learn(self) -> None:
        """Collects until a batch is full or the queue empty, as `collect_outputs` does, and then updates."""
        while piece := self.queue.get(self._batch_size - self._filled, 0.0):
            self._filled += piece.n_trajectories
            self.lags.append(self.version - piece.rollout.policy_version)
            if self._filled == self._batch_size:
                self._filled = 0
                self.version += 1
                return


class Actor:
    """An actor that plays a rollout a round, as fast as its credit lets it."""

    def __init__(self, name: int, intake: RolloutIntake, learner: Learner, n_envs: int) -> None:
        offer = JoinOffer(
            actor_id=f"a{name}",
            process_nonce=name,
            spaces=CARTPOLE_LIKE,
            n_envs=n_envs,
            network="auto",
            software_version="1",
        )
        intake.join(offer)
        self._learner, self._n_envs = learner, n_envs
        self._stream: IntakeStream = intake.open_stream(offer.actor_id, 1, peer="", cancel=lambda: None)
        self._playing: Rollout | None = None
        self._next_sequence = 1

    def finish(self, on_their_way: list[tuple[IntakeStream, Rollout]]) -> None:
        """The rollout that was played goes on its way."""
        if self._playing is not None:
            on_their_way.append((self._stream, self._playing))
            self._playing = None

    def start(self) -> None:
        """The next rollout begins if it is credited, with the newest policy."""
        if self._playing is None and self._stream.progress().credit_sequence >= self._next_sequence:
            self._playing = make_rollout(
                sequence=self._next_sequence,
                n_steps=1,
                n_envs=self._n_envs,
                policy_version=self._learner.version,
            )
            self._next_sequence += 1


def deliver(on_their_way: list[tuple[IntakeStream, Rollout]]) -> None:
    """What is on its way arrives in the order in which it was sent, as far as there is room."""
    while on_their_way:
        stream, rollout = on_their_way[0]
        try:
            stream.accept(rollout, is_active=lambda: False)
        except NotReadyError:
            return
        on_their_way.pop(0)


@settings(max_examples=300, deadline=None)
@given(
    batch_size=st.integers(1, 12),
    factor=st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    n_actors=st.integers(1, 5),
    n_envs=st.integers(1, 6),
    pace=st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_a_rollout_is_at_most_so_many_updates_old(
    batch_size: int, factor: float, n_actors: int, n_envs: int, pace: list[int]
):
    capacity = math.ceil(batch_size * factor)
    assume(n_envs <= capacity)
    learner = Learner(capacity, batch_size)
    registry = ActorRegistry(max_actors=n_actors, seed=0)
    intake = RolloutIntake(
        registry, learner.queue, spaces=CARTPOLE_LIKE, policy=PolicySpec(), n_rollout_steps=1, envs_per_actor=1
    )
    actors = [Actor(index, intake, learner, n_envs) for index in range(n_actors)]
    on_their_way: list[tuple[IntakeStream, Rollout]] = []
    for round_number in range(60):
        for actor in actors:
            actor.start()
        for actor in actors:
            actor.finish(on_their_way)
        deliver(on_their_way)
        for _ in range(pace[round_number % len(pace)]):
            learner.learn()
            deliver(on_their_way)
    # rounded up: a rollout that begins while a batch is being filled may find it full, and is then one update older
    bound = math.ceil((capacity + n_actors * n_envs) / batch_size)
    assert max(learner.lags, default=0) <= bound
