from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.columns.memory import MainMemory
from rollcast.learner.replay.columns.samples import Room, SampleRing
from rollcast.services.columns.shape import RolloutShape
from tests.played_rollouts import SPACES
from tests.unit.learner.replay.test_buffer import make_buffer, played


def test_samples_stay_valid_until_their_room_is_reused():
    buffer = make_buffer()
    buffer.insert(played())
    mine = buffer.make_ring(2, n_rooms=2)
    first = buffer.sample(2, ring=mine)
    kept = first.keys.copy()
    for _ in range(5):
        buffer.sample(2)
    buffer.sample(2, ring=mine)
    assert first.keys.tolist() == kept.tolist()
    assert buffer.sample(2, ring=mine).keys is first.keys


def test_ring_reuses_its_rooms_in_turn():
    layout = make_layout(RolloutShape(SPACES, 4), log_prob=True)
    ring = SampleRing(
        lambda batch_size: Room(layout, MainMemory(), n_steps=3, batch_size=batch_size, discount=0.9, burn_in=1), 5, 3
    )
    first, second, third = (ring.next_room() for _ in range(3))
    assert len({id(first), id(second), id(third)}) == 3
    assert ring.next_room() is first
    assert first.sample.reward.shape == (3, 5)
    assert not first.sample.has_tensors
    first.reward[7] = 1.0
    assert first.sample.reward[1, 2] == 1.0, "the room's flat arrays are the sample's"
