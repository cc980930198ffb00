"""The bound on staleness, over every schedule of actors of equal speed and a learner of any."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollcast.learner.queueing.queue import RolloutQueue, queue_capacity
from rollcast.learner.queueing.room import Turn
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.stream import IntakeStream
from rollcast.services.rollouts.rollouts import Rollout
from tests.rollouts import make_rollout
from tests.unit.learner.serving.intakes import Intake, offer


class SteppedQueue(RolloutQueue):
    """A queue whose consumer lets the actors play on while it waits, a round after the other, in one thread."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.play_round: Callable[[], bool] = lambda: False

    def _await_arrival(self, is_enough: Callable[[], bool], timeout_s: float) -> None:
        for _ in range(1000):
            if is_enough():
                return
            self._lock.release()
            try:
                somebody_is_blocked = self.play_round()
            finally:
                self._lock.acquire()
            if somebody_is_blocked and self._room.size:
                return
        raise AssertionError("the learner waits, the actors wait, and nobody goes on")


class Learner:
    """A learner without a network: one update a batch, one version an update."""

    def __init__(self, capacity: int, batch_size: int) -> None:
        self.version = 1
        self.lags: list[int] = []
        self.queue = SteppedQueue(capacity)
        self._batch_size = batch_size

    def learn(self, n_rounds: int) -> None:
        """Waits for a batch, as `collect_outputs` does, and updates for so many of the actors' rounds."""
        missing = self._batch_size
        while missing:
            piece = self.queue.get(missing, 0.0) or self.queue.get(missing, 1.0, enough=missing)
            assert piece is not None
            missing -= piece.n_trajectories
            self.lags.append(self.version - piece.rollout.policy_version)
        for _ in range(n_rounds):
            self.queue.play_round()
        self.version += 1


class OnTheirWay:
    """Rollouts that were sent, and are delivered in that order, as far as there is room."""

    def __init__(self, queue: RolloutQueue) -> None:
        self._queue = queue
        self._sent: list[tuple[IntakeStream, Rollout]] = []
        # that of the first of them, which waits for room
        self._turn: Turn | None = None

    def add(self, stream: IntakeStream, rollout: Rollout) -> None:
        self._sent.append((stream, rollout))

    def deliver(self) -> bool:
        """Delivers them; returns whether one is blocked."""
        while self._sent:
            stream, rollout = self._sent[0]
            if self._turn is None:
                self._turn = stream.offer(rollout, self._queue, lambda: None)
            if self._turn is not None:
                if self._turn.is_in is None:
                    return True
                stream.finish(rollout, is_in=self._turn.is_in)
            self._turn = None
            self._sent.pop(0)
        return False


class Actor:
    """An actor that plays a rollout a round, as fast as its credit lets it."""

    def __init__(self, name: int, intake: RolloutIntake, learner: Learner, n_envs: int) -> None:
        intake.join(offer(actor_id=f"a{name}", process_nonce=name, n_envs=n_envs))
        self._learner, self._n_envs = learner, n_envs
        self._stream: IntakeStream = intake.open_stream(f"a{name}", 1, peer="", cancel=lambda: None)
        self._playing: Rollout | None = None
        self._next_sequence = 1

    def finish(self, on_their_way: OnTheirWay) -> None:
        """The rollout that was played goes on its way."""
        if self._playing is not None:
            on_their_way.add(self._stream, self._playing)
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


def bound(capacity: int, batch_size: int, n_actors: int, n_envs: int) -> int:
    """Returns the largest age of a rollout in updates, by the rule of docs/explanation/impala.md."""
    # The rest of a rollout that is cut over two batches counts besides.
    left_over = 0 if batch_size % n_envs == 0 else n_envs - 1
    return math.ceil((capacity + n_actors * n_envs + left_over) / batch_size)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    batch_size=st.integers(1, 12),
    factor=st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    n_actors=st.integers(1, 6),
    n_envs=st.integers(1, 6),
    pace=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_rollout_is_at_most_so_many_updates_old(
    batch_size: int, factor: float, n_actors: int, n_envs: int, pace: list[int], seed: int
):
    capacity = queue_capacity(batch_size, factor)
    assume(n_envs <= capacity)
    learner, rng = Learner(capacity, batch_size), random.Random(seed)
    intake = Intake(queue=learner.queue, max_actors=n_actors).intake
    actors = [Actor(index, intake, learner, n_envs) for index in range(n_actors)]
    on_their_way = OnTheirWay(learner.queue)

    def play_round() -> bool:
        """Lets every actor play a rollout, if it may; returns whether one is blocked."""
        for actor in actors:
            actor.start()
        for actor in rng.sample(actors, n_actors):
            actor.finish(on_their_way)
        return on_their_way.deliver()

    learner.queue.play_round = play_round
    for update in range(40):
        learner.learn(pace[update % len(pace)])
    assert max(learner.lags) <= bound(capacity, batch_size, n_actors, n_envs)
