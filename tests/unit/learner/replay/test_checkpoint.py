"""A buffer that is made of another's state goes on as that one would have."""

import copy
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.replay import checkpoint, parts
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.memory import host_array
from rollcast.learner.replay.columns.samples import ReplaySample
from rollcast.services.errors import ConfigurationError, NotReadyError
from tests.buffers import make_buffer
from tests.delayed_copier import Copy, DelayedCopier
from tests.played_rollouts import World, random_ends
from tests.processes import DEADLINE_S

pytestmark = pytest.mark.slow

T = 4

KINDS = [
    {},
    {"n_step": 3},
    {"n_step": 3, "frame_stack": 3},
    {"frame_stack": 4, "sampler": "prioritized", "removal": "lowest_priority"},
    {"sampler": "prioritized"},
    {"sampler": "prioritized", "removal": "lowest_priority"},
    {"sampler": "uniform", "max_times_sampled": 3},
    {"sampler": "fifo", "max_times_sampled": 2},
    {"sampler": "lifo", "max_times_sampled": 2, "entry": "rollouts", "capacity": 8},
    {"entry": "rollouts", "capacity": 8},
    {"entry": "rollouts", "capacity": 8, "frame_stack": 3, "sequence_length": 2},
    {"entry": "rollouts", "capacity": 8, "sequence_length": 2, "burn_in": 1, "sampler": "prioritized"},
    {"entry": "rollouts", "capacity": 8, "sequence_length": 3, "burn_in": 1, "state_size": 3},
]


def fingerprint(sample: ReplaySample) -> list[object]:
    """Everything a sample says, as lists."""
    arrays = [sample.keys, sample.reward, sample.terminated, sample.truncated, sample.weights, sample.final_index]
    for columns in sample.substeps.values():
        for leaves in (columns.observation, columns.next_observation, columns.final_observation):
            arrays += list((leaves or {}).values())
        arrays += [columns.action, columns.initial_state, *(columns.previous_observation or {}).values()]
    return [None if array is None else host_array(array).tolist() for array in arrays]


def world_of(settings: dict[str, object], *, has_reset_rows: bool = False) -> World:
    """A world whose rollouts have what a buffer with these settings keeps."""
    kept = {name: int(settings[name]) for name in ("state_size", "frame_stack") if name in settings}
    return World(n_steps=T, has_reset_rows=has_reset_rows, **kept)


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


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize(("n_before", "has_reset_rows"), [(1, False), (13, True)])
def test_loaded_buffer_draws_the_same_samples(tmp_path, settings, n_before, has_reset_rows, place):
    buffer = make_buffer(place=place, **settings)
    world, rng = world_of(settings, has_reset_rows=has_reset_rows), np.random.default_rng(3)
    use(buffer, world, rng, n_before)
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    other = make_buffer(place=place, **settings)
    # something else is in it, that has to go
    use(other, world_of(settings, has_reset_rows=has_reset_rows), np.random.default_rng(4), 2)
    other.checkpoint.load(tmp_path / "state")
    copied = copy.deepcopy(world)
    again = np.random.default_rng()
    again.bit_generator.state = rng.bit_generator.state
    assert use(other, copied, again, 12) == use(buffer, world, rng, 12)


def test_loading_causes_no_burst_of_samples_or_insertions(tmp_path):
    settings = {"samples_per_insert": 2.0, "min_size": 4, "error_buffer": 16.0}
    buffer = make_buffer(**settings)
    world, rng = World(n_steps=T, has_reset_rows=False), np.random.default_rng(3)
    buffer.insert(world.play(random_ends(rng, T, 2))[0])
    with pytest.raises(NotReadyError):
        while True:
            buffer.sample(2)
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    other = make_buffer(**settings)
    other.checkpoint.load(tmp_path / "state")
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
    arrays += (columns.previous_observation or {}).values()
    arrays += [sample.keys, sample.reward, sample.terminated, sample.truncated]
    # [B, ...], or [1, B, ...]
    return [array.take(order, axis=array.shape.index(len(order))).tolist() for array in map(host_array, arrays)]


STORES = [
    {"capacity": 60},
    {"capacity": 60, "frame_stack": 4},
    {"capacity": 60, "sampler": "prioritized", "removal": "lowest_priority"},
    {"capacity": 16, "entry": "rollouts"},
    {"capacity": 16, "entry": "rollouts", "frame_stack": 3},
    {"capacity": 16, "entry": "rollouts", "removal": "lowest_priority", "sampler": "prioritized"},
    {"capacity": 16, "entry": "rollouts", "sampler": "fifo", "max_times_sampled": 2},
]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows in a piece, a few pieces in a file."""
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 128)
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 512)


def loaded(directory: Path, settings: dict[str, object], place: str | None = None) -> ReplayBuffer:
    buffer = make_buffer(place=place, **settings)
    buffer.checkpoint.load(directory)
    return buffer


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("settings", STORES)
def test_writes_only_new_rows(tmp_path, settings):
    buffer, rng = make_buffer(**settings), np.random.default_rng(3)
    world = world_of(settings)
    previous, n_linked, n_files = None, [], []
    for i in range(24):
        play_into(buffer, world, rng, 1)
        directory = tmp_path / str(i)
        digests = buffer.checkpoint.begin().write(directory, previous)
        files = set(directory.glob("rows-*"))
        linked = {path for path in files if path.stat().st_nlink > 1}
        assert digests.keys() == files - linked | {directory / "state.arrays"}
        for path, digest in digests.items():
            assert xxhash.xxh3_128_hexdigest(path.read_bytes()) == digest
        n_linked.append(len(linked))
        n_files.append(len(files))
        previous = directory
    assert max(n_linked) >= 2
    assert max(n_files) <= 12, "a checkpoint each would have made more"
    for path in tmp_path.glob("*"):
        if path.name != "23":
            shutil.rmtree(path)
    assert contents(loaded(tmp_path / "23", settings)) == contents(buffer), "what was linked stays"


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("settings", STORES)
@pytest.mark.parametrize("n_before", [2, 20])
def test_snapshot_is_unchanged_by_later_insertions(tmp_path, settings, n_before, place):
    buffer, rng = make_buffer(place=place, **settings), np.random.default_rng(3)
    world = world_of(settings)
    play_into(buffer, world, rng, 1)
    buffer.checkpoint.begin().write(tmp_path / "first", None)
    play_into(buffer, world, rng, n_before)
    expected = make_buffer(place=place, **settings)
    buffer.checkpoint.begin().write(tmp_path / "expected", None)
    expected.checkpoint.load(tmp_path / "expected")
    snapshot = buffer.checkpoint.begin()

    def meanwhile() -> None:
        play_into(buffer, world, rng, 1)
        sample = buffer.sample(2)
        buffer.update_priorities(sample.keys, rng.random(sample.keys.shape))

    meanwhile()
    snapshot.write(tmp_path / "state", tmp_path / "first", rest=meanwhile)
    other = loaded(tmp_path / "state", settings, place)
    assert contents(other) == contents(expected)
    assert contents(buffer) != contents(expected)


class SlowCopier(DelayedCopier):
    """Its copies to main memory take until `may_end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for, self.may_end = threading.Event(), threading.Event()

    def pass_host(self, copies: list[Copy]) -> None:
        if any(copy.is_to_host for copy in copies):
            self.is_waited_for.set()
            assert self.may_end.wait(DEADLINE_S)
        super().pass_host(copies)


@pytest.mark.parametrize("settings", STORES)
def test_the_buffer_is_free_while_a_snapshot_waits_for_the_device(tmp_path, settings, monkeypatch):
    copier = SlowCopier()
    monkeypatch.setattr(parts, "make_copier", lambda device: copier)
    buffer, rng, world = make_buffer(place="cpu", **settings), np.random.default_rng(3), world_of(settings)
    play_into(buffer, world, rng, 9)
    snapshot = buffer.checkpoint.begin()
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(snapshot.write, tmp_path / "state", None)
        assert copier.is_waited_for.wait(DEADLINE_S)
        # Also what the snapshot has yet to read is overwritten without a wait.
        inserting = pool.submit(play_into, buffer, world, rng, 40)
        try:
            inserting.result(DEADLINE_S)
        finally:
            copier.may_end.set()
        written.result(DEADLINE_S)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("settings", [STORES[0], STORES[3]], ids=["transitions", "rollouts"])
def test_after_a_failed_write_and_a_snapshot_that_was_given_up_the_next_is_whole(tmp_path, settings):
    buffer, rng = make_buffer(**settings), np.random.default_rng(3)
    play_into(buffer, world_of(settings), rng, 5)
    snapshot = buffer.checkpoint.begin()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        snapshot.write(tmp_path / "file" / "state", None)
    play_into(buffer, world_of(settings), rng, 5)
    buffer.checkpoint.begin().end()
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    assert contents(loaded(tmp_path / "state", settings)) == contents(buffer)


@pytest.mark.usefixtures("small_files")
def test_rewrites_rows_of_an_unreadable_file(tmp_path, caplog):
    buffer, rng = make_buffer(), np.random.default_rng(3)
    play_into(buffer, World(n_steps=T, has_reset_rows=False), rng, 5)
    buffer.checkpoint.begin().write(tmp_path / "first", None)
    (damaged, *_) = sorted((tmp_path / "first").glob("rows-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    buffer.checkpoint.begin().write(tmp_path / "second", tmp_path / "first")
    assert "are written again" in caplog.text
    assert contents(loaded(tmp_path / "second", {})) == contents(buffer)


@pytest.mark.usefixtures("small_files")
def test_rejects_checkpoint_with_missing_rows(tmp_path):
    buffer, rng = make_buffer(), np.random.default_rng(3)
    play_into(buffer, World(n_steps=T, has_reset_rows=False), rng, 5)
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    min((tmp_path / "state").glob("rows-*")).unlink()
    with pytest.raises(ConfigurationError, match=r"lacks \d+ rows of the replay buffer; .* another checkpoint"):
        loaded(tmp_path / "state", {})


@settings(max_examples=40)
@given(
    kind=st.sampled_from(STORES),
    rounds=st.lists(
        st.tuples(st.booleans(), st.integers(0, 6), st.booleans(), st.integers(0, 2)), min_size=1, max_size=6
    ),
    seed=st.integers(0, 99),
)
def test_loaded_buffer_is_equal_after_any_earlier_checkpoints(tmp_path_factory, kind, rounds, seed):
    folder = tmp_path_factory.mktemp("buffers")
    buffer, rng = make_buffer(**kind), np.random.default_rng(seed)
    world = world_of(kind)
    previous = None
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(checkpoint, "CHUNK_BYTES", 128)
        patches.setattr(checkpoint, "FILE_BYTES", 512)
        for i, (resets_before, n_before, resets_meanwhile, n_meanwhile) in enumerate(rounds):
            if resets_before:
                buffer.reset()
            play_into(buffer, world, rng, n_before)
            snapshot = buffer.checkpoint.begin()
            before = contents(buffer) if buffer.size else []
            if resets_meanwhile:
                buffer.reset()
            play_into(buffer, world, rng, n_meanwhile)
            directory = folder / str(i)
            snapshot.write(directory, previous)
            other = make_buffer(**kind)
            other.checkpoint.load(directory)
            assert (contents(other) if other.size else []) == before
            assert before or not list(directory.glob("rows-*")), "of no older entries"
            if kind.get("max_times_sampled"):
                # whoever looks has counted
                buffer.checkpoint.load(directory)
            previous = directory
    shutil.rmtree(folder)
