"""The next batch is assembled while the trainer is away, and nothing else changes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rollcast.learner.batch import Batch
from rollcast.learner.batching.ahead import AheadAssembler
from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.batching.batcher import N_SLOTS
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.services.columns.shape import RolloutShape
from tests.delayed_copier import DelayedCopier
from tests.processes import DEADLINE_S, wait_until
from tests.rollouts import CARTPOLE_LIKE, always, make_rollout

BATCH, N_ENVS = 4, 2
THREAD = "rollcast-batches"


def threads() -> list[threading.Thread]:
    """The threads that assemble batches."""
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


class Trainer:
    """A trainer whose rollouts come by hand.

    Attributes:
        stale_below: Rollouts of earlier sequences are too old.
        noted: Sequences that were taken, and whether they were dropped.
    """

    def __init__(self, *, capacity: int = 2 * BATCH, copier: Copier | None = None, batch_size: int = BATCH) -> None:
        self.queue = RolloutQueue(capacity)
        self.assembly = Assembly(
            RolloutShape(CARTPOLE_LIKE, 3),
            batch_size=batch_size,
            copier=copier or make_copier("cpu"),
            n_slots=N_SLOTS + 1,
        )
        self.stale_below = 0
        self._n_ahead = 0  # trajectories that the thread has taken since the last batch
        self.noted: list[tuple[int, bool]] = []
        self.arrivals = Arrivals(self.queue)
        self.ahead = AheadAssembler(
            self.arrivals,
            self.queue,
            self.assembly,
            batch_size=batch_size,
            is_stale=self._is_stale,
            note_taken=lambda piece, is_stale: self.noted.append((piece.rollout.sequence, is_stale)),
        )

    def _is_stale(self, piece: RolloutSlice) -> bool:
        if threading.current_thread().name == THREAD:
            self._n_ahead += piece.n_trajectories
        return piece.rollout.sequence < self.stale_below

    def put(self, *sequences: int) -> None:
        for sequence in sequences:
            assert self.queue.put(make_rollout(sequence=sequence), is_active=always)

    def collect(self) -> list[int]:
        """Takes a batch, for which enough must have come; returns the sequences of its trajectories."""
        with self.ahead.visit():
            self._n_ahead = 0
            batch = self.ahead.take() or self.fill()
        assert (batch.ready().reward[0] // 1000).tolist() == [name.sequence for name in batch.names for _ in range(2)]
        return [name.sequence for name in batch.names]

    def take(self) -> Batch:
        """Takes the batch that is assembled."""
        with self.ahead.visit():
            self._n_ahead = 0
            return self.ahead.take().ready()

    def fill(self) -> AssembledBatch:
        while n_missing := self.assembly.n_missing:
            piece = self.arrivals.get(n_missing, 0.0)
            assert piece is not None
            self.noted.append((piece.rollout.sequence, False))
            self.assembly.add(piece)
        return self.assembly.finish()

    def await_assembled(self, n_trajectories: int) -> None:
        """Waits until the thread has assembled so many."""
        wait_until(lambda: self._n_ahead == n_trajectories, "it is assembled")
        with self.ahead.visit():
            pass  # it has also added the last one


@contextmanager
def training(**options: object) -> Iterator[Trainer]:
    """A trainer that has its first batch, of sequences 1 and 2."""
    trainer = Trainer(**options)
    try:
        trainer.put(1, 2)
        assert trainer.collect() == [1, 2]
        yield trainer
    finally:
        trainer.ahead.end()


@pytest.mark.parametrize(
    "make",
    [lambda: make_copier("cpu"), DelayedCopier, pytest.param(lambda: make_copier("cuda"), marks=pytest.mark.gpu)],
    ids=["immediate", "delayed", "cuda"],
)
def test_batches_are_those_that_the_trainer_would_have_assembled(make: Callable[[], Copier]):
    with training(copier=make()) as trainer:
        for sequence in range(3, 41, 2):
            trainer.put(sequence, sequence + 1)
            if sequence % 3:
                trainer.await_assembled(BATCH)
            assert trainer.collect() == [sequence, sequence + 1]
        assert trainer.noted == [(sequence, False) for sequence in range(1, 41)]


def test_a_batch_is_valid_as_long_as_if_none_were_assembled_ahead():
    with training() as trainer:
        batches = []
        for sequence in range(3, 3 + 2 * N_SLOTS, 2):
            trainer.put(sequence, sequence + 1)
            trainer.await_assembled(BATCH)
            batches.append((sequence, trainer.take()))
        trainer.put(100, 101)
        trainer.await_assembled(BATCH)
        for sequence, batch in batches:
            assert batch.reward[0].tolist() == [1000 * sequence, 1000 * sequence + 1, *(batch.reward[0, 2:].tolist())]
            assert (batch.reward[0] // 1000).tolist() == [sequence, sequence, sequence + 1, sequence + 1]


def test_what_is_assembled_keeps_its_room_until_the_trainer_comes():
    with training(capacity=2 * BATCH) as trainer:
        trainer.put(3, 4)
        trainer.await_assembled(BATCH)
        assert trainer.queue.size == BATCH
        assert trainer.queue.reserve(BATCH)
        assert not trainer.queue.reserve(1), "else actors would play further ahead than without the thread"
        trainer.queue.release(BATCH)
        trainer.put(5, 6)
        assert trainer.queue.size == 2 * BATCH
        waiting = threading.Thread(target=trainer.put, args=(7,))
        waiting.start()
        wait_until(lambda: trainer.queue.n_waiting, "the producer waits for room")
        assert trainer.collect() == [3, 4]
        waiting.join(DEADLINE_S)
        assert trainer.collect() == [5, 6]


def test_one_batch_is_assembled_ahead_and_no_more():
    with training(capacity=3 * BATCH) as trainer:
        trainer.put(3, 4, 5, 6)
        trainer.await_assembled(BATCH)
        assert [trainer.arrivals.get(BATCH, 0.0).rollout.sequence for _ in range(2)] == [5, 6]
        trainer.collect()


def test_rollouts_count_as_taken_only_when_the_trainer_comes():
    """A checkpoint that is made meanwhile must not say that training has had them."""
    with training() as trainer:
        trainer.put(3, 4)
        trainer.await_assembled(BATCH)
        assert [sequence for sequence, _ in trainer.noted] == [1, 2]
        trainer.collect()
        assert [sequence for sequence, _ in trainer.noted] == [1, 2, 3, 4]


@pytest.mark.parametrize("n_assembled", [2, 4])
def test_what_becomes_too_old_meanwhile_is_dropped(n_assembled: int):
    with training() as trainer:
        trainer.put(*range(3, 3 + n_assembled // N_ENVS))
        trainer.await_assembled(n_assembled)
        trainer.stale_below = 4
        trainer.put(*range(3 + n_assembled // N_ENVS, 7))
        assert trainer.collect() == [4, 5]
        assert trainer.noted[2:5] == [(3, True), (4, False), (5, False)]


def test_what_is_too_old_when_it_comes_is_dropped():
    with training() as trainer:
        trainer.stale_below = 4
        trainer.put(3, 4, 5)
        trainer.await_assembled(3 * N_ENVS)
        assert trainer.collect() == [4, 5]
        assert trainer.noted[2:] == [(3, True), (4, False), (5, False)]


def test_the_trainer_goes_on_where_the_thread_stopped():
    with training() as trainer:
        trainer.put(3)
        trainer.await_assembled(N_ENVS)
        with trainer.ahead.visit():
            assert trainer.ahead.take() is None
            assert trainer.assembly.n_missing == BATCH - N_ENVS
            trainer.put(4)
            assert trainer.fill().names[1].sequence == 4


def test_nothing_is_taken_in_the_trainers_turn():
    with training() as trainer:
        with trainer.ahead.visit():
            with trainer.ahead.visit():
                pass
            trainer.put(3, 4)
            assert isinstance(trainer.arrivals.get(BATCH, 0.0), RolloutSlice)
            assert isinstance(trainer.arrivals.get(BATCH, 0.0), RolloutSlice)
        assert trainer.queue.size == 0


def test_what_ends_the_thread_is_raised_in_the_trainers(monkeypatch: pytest.MonkeyPatch):
    with training() as trainer:

        def fails(piece: RolloutSlice) -> None:
            raise ValueError(f"no room for {piece.rollout.sequence}")

        monkeypatch.setattr(trainer.assembly, "add", fails)
        trainer.put(3, 4)
        wait_until(lambda: not threads(), "the thread has failed")
        with trainer.ahead.visit(), pytest.raises(ValueError, match="no room for 3"):
            trainer.ahead.take()


def test_ends_while_it_waits_and_while_a_batch_is_ready():
    for sequences in ((), (3,), (3, 4)):
        with training() as trainer:
            trainer.put(*sequences)
            trainer.await_assembled(N_ENVS * len(sequences))
        assert not threads()


def test_a_thread_that_hangs_in_a_copy_does_not_hold_up_the_end(monkeypatch, caplog):
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(piece: RolloutSlice) -> None:
        hangs.set()
        goes_on.wait(20)

    monkeypatch.setattr("rollcast.learner.batching.ahead._END_S", 0.05)
    with training() as trainer:
        monkeypatch.setattr(trainer.assembly, "add", hang)
        trainer.put(3)
        assert hangs.wait(DEADLINE_S)
        trainer.ahead.end()
        assert "has not ended within" in caplog.text
        goes_on.set()
        wait_until(lambda: not threads(), "the thread to end")


def test_batches_are_the_same_however_the_turns_fall():
    """Puts and visits in any order: every rollout is in one batch, in order, and the queue is never above its bound."""
    rng = np.random.default_rng(0)
    with training(capacity=3 * BATCH) as trainer:
        put, collected = 2, [1, 2]
        for _ in range(400):
            if rng.random() < 0.6 and trainer.queue.size + N_ENVS <= trainer.queue.capacity:
                put += 1
                trainer.put(put)
            elif put - len(collected) >= BATCH // N_ENVS:
                collected += trainer.collect()
            assert trainer.queue.size <= trainer.queue.capacity
        assert collected == list(range(1, len(collected) + 1))
        assert [sequence for sequence, _ in trainer.noted][: len(collected)] == collected
