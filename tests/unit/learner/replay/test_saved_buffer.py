"""A buffer that is made of another's state goes on as that one would have."""

import shutil

import numpy as np
import pytest

from learner.replay import saved_buffer
from learner.replay.buffer import ReplayBuffer
from learner.replay.column_memory import host_array
from learner.replay.replay_settings import ReplaySettings
from learner.replay.samples import ReplaySample
from services.errors import NotReadyError
from tests.unit.learner.replay.played_rollouts import SPACES, World, random_ends

T = 4

KINDS = [
    {},
    {"n_step": 3},
    {"sampler": "prioritized"},
    {"sampler": "prioritized", "removal": "lowest_priority"},
    {"sampler": "uniform", "max_times_sampled": 3},
    {"sampler": "fifo", "max_times_sampled": 2},
    {"sampler": "lifo", "max_times_sampled": 2, "entry": "rollouts", "capacity": 8},
    {"entry": "rollouts", "capacity": 8},
    {"entry": "rollouts", "capacity": 8, "sequence_length": 2, "burn_in": 1, "sampler": "prioritized"},
]


def make_buffer(place: str | None, **settings: object) -> ReplayBuffer:
    return ReplayBuffer(
        ReplaySettings(**{"capacity": 40, "device": "cpu" if place is None else "learner", **settings}),
        SPACES,
        n_rollout_steps=T,
        batch_size=2,
        n_envs=2,
        learner_device=place,
    )


def fingerprint(sample: ReplaySample) -> list[object]:
    """Everything a sample says, as lists."""
    arrays = [sample.keys, sample.reward, sample.terminated, sample.truncated, sample.weights, sample.final_index]
    for columns in sample.substeps.values():
        for leaves in (columns.observation, columns.next_observation, columns.final_observation):
            arrays += list((leaves or {}).values())
        arrays.append(columns.action)
    return [None if array is None else host_array(array).tolist() for array in arrays]


def use(buffer: ReplayBuffer, world: World, rng: np.random.Generator, n_rounds: int) -> list[object]:
    """Inserts, draws and sets priorities; returns what was drawn."""
    seen: list[object] = []
    for _ in range(n_rounds):
        rollout, _ = world.play(random_ends(rng, T, world.n_envs))
        buffer.insert(rollout)
        for _ in range(2):
            sample = buffer.sample(2)
            seen.append(fingerprint(sample))
            buffer.update_priorities(sample.keys, rng.random(sample.keys.shape))
    info = buffer.info()
    return [*seen, info.size, info.inserted, info.sampled]


@pytest.mark.parametrize("has_reset_rows", [False, True])
@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("n_before", [1, 13])
def test_it_draws_what_the_other_would_have_drawn(tmp_path, settings, n_before, has_reset_rows, place):
    buffer = make_buffer(place, **settings)
    world, rng = World(n_steps=T, has_reset_rows=has_reset_rows), np.random.default_rng(3)
    use(buffer, world, rng, n_before)
    buffer.saved.begin().write(tmp_path / "state", None)
    other = make_buffer(place, **settings)
    # something else is in it, that has to go
    use(other, World(n_steps=T, has_reset_rows=has_reset_rows), np.random.default_rng(4), 2)
    other.saved.load(tmp_path / "state")
    copied = World(**{name: getattr(world, name) for name in ("n_steps", "has_reset_rows", "n_envs", "_count")})
    copied._sequence, copied._current, copied._must_reset = (
        world._sequence,
        dict(world._current),
        dict(world._must_reset),
    )
    again = np.random.default_rng()
    again.bit_generator.state = rng.bit_generator.state
    assert use(other, copied, again, 12) == use(buffer, world, rng, 12)


def test_no_burst_follows_on_either_side(tmp_path):
    settings = {"samples_per_insert": 2.0, "min_size": 4, "error_buffer": 16.0}
    buffer = make_buffer(None, **settings)
    world, rng = World(n_steps=T, has_reset_rows=False), np.random.default_rng(3)
    buffer.insert(world.play(random_ends(rng, T, 2))[0])
    with pytest.raises(NotReadyError):
        while True:
            buffer.sample(2)
    buffer.saved.begin().write(tmp_path / "state", None)
    other = make_buffer(None, **settings)
    other.saved.load(tmp_path / "state")
    assert other.info().limiter == buffer.info().limiter
    with pytest.raises(NotReadyError, match="waits for insertions"):
        other.sample(2)


def play_into(buffer: ReplayBuffer, world: World, rng: np.random.Generator, n_rollouts: int) -> None:
    for _ in range(n_rollouts):
        buffer.insert(world.play(random_ends(rng, T, world.n_envs))[0])


def contents(buffer: ReplayBuffer) -> list[object]:
    """Every entry, in the order of the keys."""
    sample = buffer.sample(buffer.size)
    order = np.argsort(sample.keys)
    (columns,) = sample.substeps.values()
    arrays = [*columns.observation.values(), *columns.next_observation.values(), columns.action]
    arrays += [sample.keys, sample.reward, sample.terminated, sample.truncated]
    # [B, ...], or [1, B, ...]
    return [array.take(order, axis=array.shape.index(len(order))).tolist() for array in map(host_array, arrays)]


def test_only_what_is_new_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_buffer, "SEGMENT_ROWS", 8)
    buffer, rng = make_buffer(None, capacity=60), np.random.default_rng(3)
    world = World(n_steps=T, has_reset_rows=False)
    previous = None
    n_linked = []
    for i in range(12):
        play_into(buffer, world, rng, 3)
        directory = tmp_path / str(i)
        buffer.saved.begin().write(directory, previous)
        files = sorted(directory.glob("rows-*"))
        n_linked.append(sum(path.stat().st_nlink > 1 for path in files))
        assert len(files) - n_linked[-1] <= 6, "three rollouts of two environments, 10 rows each with two ends"
        previous = directory
    assert max(n_linked) >= 4
    other = make_buffer(None, capacity=60)
    other.saved.load(tmp_path / "11")
    assert contents(other) == contents(buffer)
    for path in tmp_path.glob("?"):
        shutil.rmtree(path)
    other.saved.load(tmp_path / "11")
    assert contents(other) == contents(buffer), "what was linked stays when the others are removed"


def test_a_snapshot_is_of_its_moment_whatever_is_inserted_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_buffer, "SEGMENT_ROWS", 8)
    buffer, rng = make_buffer(None, capacity=60), np.random.default_rng(3)
    world = World(n_steps=T, has_reset_rows=False)
    play_into(buffer, world, rng, 40)
    before = contents(buffer)
    snapshot = buffer.saved.begin()
    play_into(buffer, world, rng, 1)
    snapshot.write(tmp_path / "state", None)
    other = make_buffer(None, capacity=60)
    other.saved.load(tmp_path / "state")
    assert contents(other) == before
    assert contents(buffer) != before


def test_rows_that_are_overwritten_too_early_are_no_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_buffer, "SEGMENT_ROWS", 8)
    buffer, rng = make_buffer(None, capacity=60), np.random.default_rng(3)
    world = World(n_steps=T, has_reset_rows=False)
    play_into(buffer, world, rng, 40)
    snapshot = buffer.saved.begin()
    play_into(buffer, world, rng, 40)
    with pytest.raises(NotReadyError, match=r"were overwritten before they were saved; .*; save again"):
        snapshot.write(tmp_path / "state", None)
