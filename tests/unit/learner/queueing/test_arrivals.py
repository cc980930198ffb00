from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.learner.queueing.slot_order import SlotOrder
from tests.rollouts import make_rollout


class Recovered(DurableRollouts):
    """A log in which there was something."""

    def __init__(self, *pieces: RolloutSlice) -> None:
        self._pieces = list(pieces)

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        return self._pieces.pop(0) if self._pieces else None


def queue_of(*arrived: tuple[int, str]) -> RolloutQueue:
    queue = RolloutQueue(100)
    for sequence, actor_id in arrived:
        assert queue.put(make_rollout(sequence=sequence, actor_id=actor_id), is_active=lambda: True)
    return queue


def taken_from(arrivals: Arrivals, max_trajectories: int = 9) -> list[tuple[int, str, int]]:
    pieces = iter(lambda: arrivals.get(max_trajectories, 0.0), None)
    return [(piece.rollout.sequence, piece.rollout.actor_id, piece.n_trajectories) for piece in pieces if piece]


def test_without_an_order_they_come_as_they_arrived():
    assert taken_from(Arrivals(queue_of((1, "1"), (1, "0")))) == [(1, "1", 2), (1, "0", 2)]


def test_in_the_order_of_slots_nobody_whose_turn_it_is_not_is_handed_out():
    queue = queue_of((1, "1"), (2, "0"), (1, "0"))
    assert (
        taken_from(Arrivals(queue, order=SlotOrder(2, int)), 1)
        == [(1, "0", 1)] * 2 + [(1, "1", 1)] * 2 + [(2, "0", 1)] * 2
    )
    arrivals = Arrivals(queue_of((1, "1")), order=SlotOrder(2, int))
    assert arrivals.get(9, 0.0) is None


def test_what_was_recovered_comes_first():
    recovered = Recovered(RolloutSlice(make_rollout(sequence=7), 1, 2))
    assert taken_from(Arrivals(queue_of((8, "a")), durable=recovered)) == [(7, "a", 1), (8, "a", 2)]
