import numpy as np

from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.sampling.insertion_order import Fifo
from rollcast.learner.replay.stores.rollouts import RolloutStore
from rollcast.services.columns.shape import RolloutShape
from tests.played_rollouts import SPACES, World

T = 3


def make_store(capacity: int = 4) -> RolloutStore:
    return RolloutStore(make_layout(RolloutShape(SPACES, T), log_prob=True), capacity, Fifo(capacity))


def insert(store: RolloutStore, world: World):
    return store.insert(world.play(np.zeros((T, world.n_envs), int))[0])


def keys_of(store: RolloutStore) -> list[int]:
    keys = store.row_keys(store.state())
    return sorted(keys[keys >= 0].tolist())


def test_keys_are_never_reused():
    store, world = make_store(), World(n_steps=T, has_reset_rows=False, n_envs=2)
    seen: list[int] = []
    for _ in range(5):
        insert(store, world)
        keys = keys_of(store)
        assert all(slot == key % store.n_slots for slot, key in zip(store.find(np.array(keys))[0], keys, strict=True))
        seen += [key for key in keys if key not in seen]
    assert len(seen) == 10
    slots, is_there = store.find(np.array(seen))
    assert int(np.count_nonzero(is_there)) == 4
    store.remove(slots[is_there][:1])
    assert int(np.count_nonzero(store.find(np.array(seen))[1])) == 3


def test_keys_continue_after_a_clear():
    store, world = make_store(), World(n_steps=T, has_reset_rows=False, n_envs=2)
    insert(store, world)
    before = keys_of(store)
    store.clear()
    assert store.size == 0
    insert(store, world)
    assert not set(before) & set(keys_of(store))
