import itertools

import pytest
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st

from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice
from rollcast.learner.queueing.slot_order import SlotOrder, actors_in_step
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.rollouts import make_rollout


def queue_of(*arrived: tuple[int, str]) -> RolloutQueue:
    queue = RolloutQueue(100)
    for sequence, actor_id in arrived:
        assert queue.put(make_rollout(sequence=sequence, actor_id=actor_id), is_active=lambda: True)
    return queue


def taken_from(arrivals: Arrivals, max_trajectories: int = 9) -> list[tuple[int, str, int]]:
    pieces = iter(lambda: arrivals.get(max_trajectories, 0.0), None)
    return [(piece.rollout.sequence, piece.rollout.actor_id, piece.n_trajectories) for piece in pieces if piece]


def test_in_the_order_of_slots_nobody_whose_turn_it_is_not_is_handed_out():
    queue = queue_of((1, "1"), (2, "0"), (1, "0"))
    assert (
        taken_from(Arrivals(queue, order=SlotOrder(2, int)), 1)
        == [(1, "0", 1)] * 2 + [(1, "1", 1)] * 2 + [(2, "0", 1)] * 2
    )
    arrivals = Arrivals(queue_of((1, "1")), order=SlotOrder(2, int))
    assert arrivals.get(9, 0.0) is None


@given(st.permutations(list(itertools.product(range(1, 4), range(3)))), st.integers(1, 5))
def test_whatever_order_they_come_in(arrivals, max_trajectories):
    order, taken = SlotOrder(3, int), []
    for sequence, slot in arrivals:
        rollout = make_rollout(sequence=sequence, actor_id=str(slot))
        order.add(RolloutSlice(rollout, 0, rollout.n_envs))
        while (piece := order.take(max_trajectories)) is not None:
            assert piece.n_trajectories <= max_trajectories
            taken += [(piece.rollout.sequence, int(piece.rollout.actor_id), i) for i in range(piece.start, piece.stop)]
    assert taken == [(*arrival, i) for arrival in sorted(arrivals) for i in range(rollout.n_envs)]


def spaces_of(n_agents=1, keys=("0",)):
    return {key: SubstepSpaces(observation=Discrete(2), action=Discrete(2), n_agents=n_agents) for key in keys}


def test_how_many_actors_make_a_batch():
    assert actors_in_step(spaces_of(), 64, 16) == 4
    assert actors_in_step(spaces_of(n_agents=2), 64, 16) == 2
    with pytest.raises(ConfigurationError, match="batch_size is 65, and an actor collects 16 trajectories"):
        actors_in_step(spaces_of(), 65, 16)
    with pytest.raises(ConfigurationError, match=r"substeps \['a', 'b'\] is not supported"):
        actors_in_step(spaces_of(keys=("a", "b")), 64, 16)
