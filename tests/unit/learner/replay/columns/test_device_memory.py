"""Columns on the learner's device beside those in main memory: the same bits, and nothing goes back and forth."""

import numpy as np
import pytest
import torch

from rollcast.learner.devices.copier import make_copier
from rollcast.learner.replay import free_memory, parts
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.columns.device_memory import DeviceMemory
from rollcast.learner.replay.columns.memory import Blocks, MainMemory, Span, Write, host_array
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.buffers import make_buffer
from tests.delayed_copier import DelayedCopier
from tests.played_rollouts import SPACES, World, check_same, random_ends

T = 6
STORES = {
    "ring": {},
    "ring of 3 steps": {"n_step": 3, "log_prob": True},
    "transitions": {"removal": "lowest_priority", "n_step": 2},
    "rollouts": {"entry": "rollouts", "capacity": 11},
    "sequences": {"entry": "rollouts", "capacity": 11, "sequence_length": 2, "burn_in": 1},
    "sequences by priority": {
        "entry": "rollouts",
        "capacity": 11,
        "sequence_length": 3,
        "removal": "lowest_priority",
        "sampler": "prioritized",
    },
}
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def buffer_on(device: str | None, spaces: EnvironmentSpaces = SPACES, **settings: object) -> ReplayBuffer:
    return make_buffer(spaces, n_rollout_steps=T, batch_size=4, place=device, **{"capacity": 50, **settings})


@pytest.fixture(params=STORES.values(), ids=STORES)
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return request.param


@pytest.mark.parametrize("has_reset_rows", [False, True])
def test_same_seed_draws_same_bits_from_either_memory(settings: dict[str, object], has_reset_rows: bool, device: str):
    buffer, twin = buffer_on(None, **settings), buffer_on(device, **settings)
    rng, world = np.random.default_rng(0), World(T, has_reset_rows, n_envs=4)
    n_finals = 0
    for lap in range(24):
        rollout, _ = world.play(random_ends(rng, T, 4, 0.0 if lap % 4 == 0 else 0.3))
        assert buffer.insert(rollout) == twin.insert(rollout)
        sample, other = buffer.sample(4), twin.sample(4)
        assert not sample.has_tensors
        assert other.has_tensors
        check_same(sample, other)
        n_finals += len(sample.final_index)
        priorities = rng.random(4)
        assert buffer.update_priorities(sample.keys, priorities) == twin.update_priorities(other.keys, priorities)
    assert twin.info() == buffer.info()
    assert n_finals or has_reset_rows or settings.get("entry") != "rollouts"


def test_a_batch_on_the_device_shares_the_columns(settings: dict[str, object], device: str):
    buffer = buffer_on(device, **settings)
    buffer.insert(World(T, has_reset_rows=False).play(np.zeros((T, 2), int))[0])
    buffer.insert(World(T, has_reset_rows=False).play(np.zeros((T, 2), int))[0])
    sample = buffer.sample(4)
    columns, shown = sample.substeps[FLAT_SUBSTEP], to_batch(sample, device).substeps[FLAT_SUBSTEP]
    for mine, theirs in (
        (columns.observation["b"], shown.observation["b"]),
        (columns.next_observation["a"], shown.last_observation["a"]),
        (columns.action, shown.action),
    ):
        assert isinstance(mine, torch.Tensor)
        assert mine.device.type == device
        assert theirs.data_ptr() == mine.data_ptr()


@pytest.mark.parametrize("dtype", [*UNSIGNED, "int8", "int64", "float16", "float64", "bool"])
def test_every_dtype_is_written_and_gathered(dtype: str, device: str):
    places = (MainMemory(), DeviceMemory(parts.make_copier(device)))
    values = np.random.default_rng(0).integers(0, 256, (3, 2, 5)).astype(dtype)
    drawn = []
    for place in places:
        column, other = place.zeros((9, 5), np.dtype(dtype)), place.zeros((9,), np.dtype(np.int64))
        # as trajectories lie in a ring; one step goes nowhere
        rows, ends = Span(1, np.array([0, 2, 4, -1, 3, 5, -1])), np.array([0, 4])
        place.write([Write([column], rows, [values]), Write([other], ends, [np.array([7, 8])])])
        place.write([Write([column], Blocks(9, 3, np.array([2, 0])), [values[1:]])])
        target, last = place.zeros((4, 5), np.dtype(dtype)), place.zeros((3,), np.dtype(np.int64))
        place.gather([(other, last)], [(column, target)])(np.array([9, 0, 4]), np.array([8, 1, 1, 5]))
        kept = place.keep([values[:, 0], values[:, 1]], [2, 1])
        joined = place.join([kept[1][0], kept[0][1][1:]])
        drawn.append([host_array(array) for array in (column, target, last, joined)])
        drawn[-1][0][[4, 7]] = 0  # what is in a row that takes no value is not said
    for mine, theirs in zip(*drawn, strict=True):
        np.testing.assert_array_equal(theirs, mine, strict=True)
    assert drawn[0][2].tolist() == [7, 7, 8], "the row after the last is the first"


def test_reads_rows_as_they_were_when_they_were_asked_for():
    copier = DelayedCopier()
    memory = DeviceMemory(copier)
    column = memory.zeros((4,), np.dtype(np.int64))
    memory.write([Write([column], np.arange(4), [np.array([1, 2, 3, 4])])])
    read = memory.read([column], np.array([3, 0]))
    memory.write([Write([column], np.arange(4), [np.array([5, 6, 7, 8])])])
    n_waits = copier.n_waits
    (rows,) = read()
    assert rows.tolist() == [4, 1]
    assert copier.n_waits == n_waits + 1, "nobody waited before"


def test_rejects_learner_device_without_a_learner():
    with pytest.raises(
        ConfigurationError, match=r"device is 'learner', and this process has no learner, .* 'cpu' here"
    ):
        make_buffer(device="learner")


def test_tensors_on_the_cpu_count_as_main_memory(monkeypatch: pytest.MonkeyPatch):
    announced: list[str] = []
    for where in ("cpu", "learner"):
        make_buffer(
            n_rollout_steps=T,
            place="cpu",
            capacity=1000,
            device=where,
            announce=lambda line: announced.append(line.partition(";")[0]),
        )
    assert announced[0] == announced[1]
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 20_000)
    with pytest.raises(ConfigurationError, match=r"takes 3\d\.\d kB, and 20.0 kB are available"):
        buffer_on("cpu", capacity=1000)


class TestMemoryOfAGpu:
    """The GPU's memory is made up; the buffer is refused before anything is allocated on it."""

    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(free_memory, "available_bytes", lambda: 8 * 10**9)
        monkeypatch.setattr(free_memory, "free_device_bytes", lambda device: 10**6 if device.type == "cuda" else None)

    @pytest.mark.parametrize("store", ["ring", "transitions", "sequences"])
    def test_announces_both_sizes_and_rejects_buffer_above_free_device_memory(self, store: str):
        announced: list[str] = []
        settings = {**STORES[store], "capacity": 1_000_000, "device": "learner"}
        with pytest.raises(ConfigurationError) as error:
            make_buffer(n_rollout_steps=T, place="cuda", announce=announced.append, **settings)
        assert "MB on cuda, and 1.0 MB are free there; expected at most that much; lower" in str(error.value)
        assert "device 'cpu'" in str(error.value)
        (line,) = announced
        assert " MB on cuda, " in line
        assert line.endswith(" MB in main memory; 8.0 GB of memory are available, and 1.0 MB on cuda")

    def test_a_ring_keeps_five_bytes_a_row_in_main_memory(self):
        announced: list[str] = []
        with pytest.raises(ConfigurationError):
            make_buffer(n_rollout_steps=100, place="cuda", announce=announced.append, capacity=1_000_000)
        # 1,041,250 rows of an observation of 14 bytes and an action of 8
        assert "28.1 MB in all: 22.9 MB on cuda, 5.2 MB in main memory;" in announced[0]


@pytest.mark.gpu
class TestOnAGpu:
    """Tests that need a GPU."""

    def test_sampling_neither_waits_for_device_nor_copies_observations_back(self, settings: dict[str, object]):
        buffer = buffer_on("cuda", **settings)
        world, rng = World(T, has_reset_rows=False, n_envs=4), np.random.default_rng(0)
        rollouts = [world.play(random_ends(rng, T, 4))[0] for _ in range(6)]
        for rollout in rollouts[:5]:
            buffer.insert(rollout)
            buffer.sample(4)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")  # a copy to the CPU waits for the device
        try:
            buffer.insert(rollouts[5])
            sample = buffer.sample(4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        columns = sample.substeps[FLAT_SUBSTEP]
        for array in (*columns.observation.values(), *columns.next_observation.values(), columns.action):
            assert isinstance(array, torch.Tensor)
            assert array.is_cuda

    def test_reading_waits_for_the_device_only_where_the_rows_are_wanted(self):
        memory = DeviceMemory(make_copier("cuda"))
        column = memory.zeros((4,), np.dtype(np.int64))
        memory.write([Write([column], np.arange(4), [np.array([1, 2, 3, 4])])])
        torch.cuda.synchronize()
        busy = torch.cuda.Event()
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(500_000_000)
            busy.record()
            read = memory.read([column], np.array([3, 0]))
            memory.write([Write([column], np.arange(4), [np.array([5, 6, 7, 8])])])
            assert not busy.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert read()[0].tolist() == [4, 1]

    def test_sample_drawn_on_another_stream_is_complete(self):
        buffer, twin = buffer_on(None), buffer_on("cuda")
        world, stream = World(T, has_reset_rows=False), torch.cuda.Stream()
        for _ in range(30):
            rollout, _ = world.play(np.zeros((T, 2), int))
            torch.cuda._sleep(1_000_000)
            buffer.insert(rollout)
            twin.insert(rollout)
            with torch.cuda.stream(stream):
                drawn = twin.sample(4)
                kept = drawn.substeps[FLAT_SUBSTEP].observation["a"].clone()
            stream.synchronize()
            expected = buffer.sample(4).substeps[FLAT_SUBSTEP].observation["a"]
            np.testing.assert_array_equal(kept.cpu().numpy(), expected)
