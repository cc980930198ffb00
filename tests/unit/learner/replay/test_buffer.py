import dataclasses
import logging
import threading

import numpy as np
import pytest

from rollcast.learner.replay.columns.memory import host_array
from rollcast.services.errors import (
    ConfigurationError,
    InvalidInputError,
    LimitExceededError,
    NotReadyError,
)
from tests.buffers import make_buffer
from tests.played_rollouts import World, check_transitions, random_ends

T = 4


def test_logs_its_memory_if_no_callback_is_given(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        make_buffer(entry="rollouts")
    (line,) = caplog.messages
    assert line.startswith("replay buffer: 40 rollouts of ")
    assert line.endswith("of memory are available")


def test_beta_can_be_changed_while_the_buffer_is_used():
    buffer = make_buffer(sampler="prioritized", alpha=1.0, beta=0.0, batch_size=8, min_size=8)
    buffer.insert(played())
    keys = np.unique(buffer.sample(8).keys)
    buffer.update_priorities(keys, np.arange(1.0, len(keys) + 1))
    for beta in (0.0, 0.5, 1.0):
        buffer.set_beta(beta)
        sample = buffer.sample(8)
        priorities = np.searchsorted(keys, sample.keys) + 1.0
        np.testing.assert_allclose(sample.weights, (priorities / priorities.min()) ** -beta, rtol=1e-6)


@pytest.mark.parametrize("beta", [-0.1, 1.1, np.nan])
def test_rejects_beta_out_of_range(beta: float):
    with pytest.raises(InvalidInputError, match=f"beta is {beta}; expected from 0"):
        make_buffer(sampler="prioritized").set_beta(beta)


def test_beta_has_no_effect_on_uniform_sampler():
    buffer = make_buffer(sampler="uniform")
    buffer.insert(played())
    buffer.set_beta(1.0)
    assert (buffer.sample(2).weights == 1.0).all()


def played(world: World | None = None):
    world = world or World(n_steps=T, has_reset_rows=False)
    return world.play(np.zeros((T, world.n_envs), int))[0]


def test_error_of_too_large_batch_names_both_sizes():
    buffer = make_buffer(min_size=2)
    with pytest.raises(NotReadyError, match="a sample of 2 waits for 2 entries: 0 of 2"):
        buffer.sample(2)
    buffer.insert(played())
    with pytest.raises(InvalidInputError, match="a batch of 9 was requested from a replay buffer that holds 8 entries"):
        buffer.sample(9)
    with pytest.raises(InvalidInputError, match=r"a batch of 41 .* expected 1 to 40"):
        buffer.sample(41)
    with pytest.raises(InvalidInputError, match="a batch of 0 "):
        buffer.sample(0)


@pytest.mark.parametrize("argument", ["n_rollout_steps", "batch_size", "n_envs"])
def test_rejects_sizes_below_one(argument: str):
    arguments = {"n_rollout_steps": T, "batch_size": 2, "n_envs": 1, argument: 0}
    with pytest.raises(ConfigurationError, match=f"{argument} is 0"):
        make_buffer(**arguments)


@pytest.mark.parametrize("way", ["insert", "load"])
@pytest.mark.parametrize(
    "settings",
    [{"n_step": 3}, {"n_step": 3, "removal": "lowest_priority", "sampler": "prioritized"}, {"entry": "rollouts"}],
    ids=["ring", "transitions", "rollouts"],
)
def test_rewards_are_clipped_one_by_one_before_they_are_summed(settings: dict, way: str, place: str | None):
    rollout = played()
    own = np.array([[7.0, 0.25], [-3.0, 0.5], [0.5, -9.0], [2.0, 0.0]], np.float32)
    rollout = dataclasses.replace(rollout, reward=own)
    own.setflags(write=False)  # as those of the wire
    samples = []
    for given in (rollout, dataclasses.replace(rollout, reward=own.clip(-1.0, 1.0))):
        clip = "unit" if given is rollout else "none"
        buffer = make_buffer(reward_clip=clip, discount=0.5, place=place, **settings)
        assert getattr(buffer, way)(given if way == "insert" else [given])
        samples.append(host_array(buffer.sample(buffer.size).reward))
    clipped, expected = samples
    assert np.array_equal(clipped, expected)
    assert np.abs(clipped).max() <= 1.0 + 0.5 + 0.25
    assert rollout.reward is own
    assert own[0, 0] == 7.0


def test_keeps_last_entries_of_rollout_larger_than_buffer(place: str | None):
    buffer = make_buffer(capacity=10, sampler="fifo", place=place)
    world = World(n_steps=T, has_reset_rows=False, n_envs=9)
    rollout, steps = world.play(random_ends(np.random.default_rng(0), T, 9))
    assert buffer.insert(rollout) == 36
    sample = buffer.sample(buffer.size)
    numbers = check_transitions(sample, {step.observation: step for step in steps}, 1, 0.99)
    assert numbers.tolist() == [step.observation for step in steps[-buffer.size :]]


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_seed_decides_the_samples(sampler: str):
    def drawn(seed: int) -> list[int]:
        buffer = make_buffer(seed=seed, sampler=sampler)
        buffer.insert(played())
        return [key for _ in range(5) for key in buffer.sample(2).keys.tolist()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_limiter_blocks_both_sides_with_a_reason():
    buffer = make_buffer(samples_per_insert=0.5, min_size=8)
    for _ in range(2):
        buffer.insert(played())
    with pytest.raises(NotReadyError, match=r"an insertion of 8 waits for 4 samples: \(16 inserted \+ 8\) \* 0.5"):
        buffer.insert(played())
    for _ in range(4):
        buffer.sample(2)
    with pytest.raises(NotReadyError, match="a sample of 2 waits for insertions"):
        buffer.sample(2)
    assert buffer.insert(played(), timeout_s=5) == 8
    with pytest.raises(LimitExceededError, match="has 20 entries; expected at most 8"):
        buffer.insert(played(World(n_steps=T, has_reset_rows=False, n_envs=5)))
    with pytest.raises(InvalidInputError, match=r"a batch of 3 .* expected 1 to 2"):
        buffer.sample(3)


def test_priorities_are_set_by_key_and_stale_keys_counted():
    buffer = make_buffer(sampler="prioritized", capacity=8, alpha=1.0)
    world = World(n_steps=T, has_reset_rows=False)
    buffer.insert(played(world))
    old = buffer.sample(8).keys.copy()
    with pytest.raises(InvalidInputError, match=r"the priority at index 1 .* is -1.0"):
        buffer.update_priorities(old[:2], [1.0, -1.0])
    buffer.insert(played(world))
    assert buffer.update_priorities(old, np.ones(8)) == 8
    keys = buffer.sample(8).keys.copy()
    assert buffer.update_priorities(keys, np.where(keys == keys[0], 1.0, 0.0)) == 0
    assert set(buffer.sample(8).keys.tolist()) <= {int(keys[0]), *set(range(int(keys.max()) + 20)) - set(keys.tolist())}
    assert buffer.info().ignored_updates == 8
    assert buffer.update_priorities([-5, 10**15], [1.0, 1.0]) == 2, "keys that never were are ignored, too"


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "removal"), [("uniform", "oldest"), ("prioritized", "lowest_priority")])
def test_threads_that_insert_sample_and_update_do_not_disturb_each_other(sampler: str, removal: str, place: str | None):
    buffer = make_buffer(sampler=sampler, removal=removal, capacity=60, batch_size=8, min_size=8, place=place)
    known, failures, lock = {}, [], threading.Lock()
    inserted, sampled = threading.Event(), threading.Event()

    def insert(seed: int) -> None:
        world = World(n_steps=T, has_reset_rows=bool(seed % 2), _count=10_000 * (seed + 1))
        rng = np.random.default_rng(seed)
        for _ in range(50):
            rollout, steps = world.play(random_ends(rng, T, 2, 0.1))
            with lock:
                known.update({step.observation: step for step in steps})
            buffer.insert(rollout)
            inserted.set()

    def sample() -> None:
        ring = buffer.make_ring(8)
        inserted.wait(10)
        for _ in range(50):
            drawn = buffer.sample(8, ring=ring, timeout_s=10)
            with lock:
                check_transitions(drawn, known, 1, 0.99)
            buffer.update_priorities(drawn.keys, np.abs(drawn.reward[0]) + 0.1)
            sampled.set()

    def guarded(work, *arguments) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 whatever it is, the test has to show it
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(insert, seed)) for seed in range(3)]
    threads += [threading.Thread(target=guarded, args=(sample,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    info = buffer.info()
    assert info.sampled == 3 * 50 * 8
    assert info.size == info.limiter.size <= 60
    assert info.limiter.waiting == ()
