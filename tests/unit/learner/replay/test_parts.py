from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rollcast.learner.replay import free_memory
from rollcast.learner.replay import free_memory as memory
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.free_memory import (
    available_bytes,
    check_memory,
    describe_available,
    format_bytes,
    free_device_bytes,
)
from rollcast.learner.replay.parts import plan_size
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import ConfigurationError
from tests.played_rollouts import SPACES
from tests.unit.learner.replay.test_buffer import T, make_buffer


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size": 1}, "min_size is 1, below the batch_size of 2"),
        ({"capacity": 1}, "holds 1 entries, fewer than a batch of 2"),
        ({"capacity": 3}, "holds 3 entries, fewer than the 4 steps of one rollout"),
        ({"capacity_bytes": 100}, "holds 0 entries .in 100 bytes., fewer than a batch of 2"),
        ({"samples_per_insert": 1.0, "error_buffer": 1.0}, "error_buffer is 1; expected at least 8"),
    ],
)
def test_refuses_impossible_settings(settings: dict, text: str):
    with pytest.raises(ConfigurationError, match=text):
        make_buffer(**settings)


def test_rejects_buffer_larger_than_free_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1_500_000)
    announced: list[str] = []
    with pytest.raises(ConfigurationError) as error:
        make_buffer(capacity=1_000_000, announce=announced.append)
    assert str(error.value).startswith(
        "a replay buffer of 1,000,000 transitions of 34.6 bytes takes 34.6 MB, and 1.5 MB are available; expected"
    )
    assert "lower the buffer's capacity, set capacity_bytes, or" in str(error.value)
    assert announced == [
        "replay buffer: 1,000,000 transitions of 34.6 bytes, 34.6 MB in all; 1.5 MB of memory are available"
    ], "announced before it is refused, and so before it is allocated"
    assert make_buffer(capacity=1_000_000, capacity_bytes=1_400_000).info().n_bytes <= 1_400_000


def test_plans_the_largest_capacity_within_the_bytes():
    replay = ReplaySettings(capacity=1_000_000, capacity_bytes=1_400_000)
    layout = make_layout(RolloutShape(SPACES, T), log_prob=False)
    size = plan_size(replay, layout, batch_size=2)
    assert size.n_bytes <= 1_400_000
    larger = ReplaySettings(capacity=size.capacity + 1)
    assert plan_size(larger, layout, batch_size=2).n_bytes > 1_400_000


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size": 41}, "min_size is 41, above the capacity of 40"),
        ({"entry": "rollouts", "n_step": 3}, "n_step is 3 with entry 'rollouts'"),
        ({"sequence_length": 3}, "sequence_length is 3 and burn_in 0 with entry 'transitions'"),
        ({"entry": "rollouts", "burn_in": 3}, "burn_in is 3 without a sequence_length"),
        ({"samples_per_insert": 3.0, "max_times_sampled": 2}, "samples_per_insert is 3 and max_times_sampled 2"),
        ({"error_buffer": 3.0}, "error_buffer is 3 without samples_per_insert"),
        ({"capcity": 3}, "capcity"),
        ({"alpha": -1.0}, "alpha"),
    ],
)
def test_refuses_settings_that_contradict_each_other(settings: dict, text: str):
    with pytest.raises(ValidationError, match=text):
        ReplaySettings(**{"capacity": 40, **settings})


@pytest.mark.parametrize(
    ("entry", "log_prob", "expected"),
    [("rollouts", None, True), ("transitions", None, False), ("rollouts", False, False), ("transitions", True, True)],
)
def test_keeps_log_probabilities_with_rollouts_by_default(entry: str, log_prob: bool | None, expected: bool):
    assert ReplaySettings(entry=entry, log_prob=log_prob).keeps_log_prob is expected


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GB available and no container."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUPS", ((tmp_path / "max", tmp_path / "current", tmp_path / "stat"),))
    return tmp_path


def test_machine_limits_available_memory(machine: Path):
    assert available_bytes() == 8_000_000 * 1024
    assert describe_available() == "8.2 GB of memory are available"
    (machine / "max").write_text("max\n")
    assert available_bytes() == 8_000_000 * 1024


def test_smaller_container_limits_available_memory(machine: Path):
    (machine / "max").write_text("1000000\n")
    (machine / "current").write_text("700000\n")
    (machine / "stat").write_text("anon 600000\ninactive_file 50000\n")
    assert available_bytes() == 350_000
    (machine / "current").write_text("2000000\n")
    assert available_bytes() == 0


def test_rejects_too_large_buffer_with_both_sizes(machine: Path):
    check_memory(8_000_000 * 1024, what="this")
    with pytest.raises(ConfigurationError, match=r"a buffer takes 9\.0 GB, and 8\.2 GB are available; expected"):
        check_memory(9 * 10**9, what="a buffer")


def test_asks_gpu_for_its_free_memory(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2_000_000_000, 8_000_000_000))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert free_device_bytes(gpu) == 2_000_000_000
    assert free_device_bytes(cpu) is None
    assert describe_available(gpu) == "8.2 GB of memory are available, and 2.0 GB on cuda"
    assert describe_available(cpu) == describe_available()
    check_memory(0, gpu, 2_000_000_000, what="this")
    check_memory(0, cpu, 10**18, what="a device without memory of its own")
    with pytest.raises(
        ConfigurationError, match=r"a buffer takes 3\.0 GB on cuda, and 2\.0 GB are free there; expected"
    ):
        check_memory(0, gpu, 3_000_000_000, what="a buffer")


def test_accepts_any_size_if_free_memory_is_unknown(machine: Path):
    (machine / "meminfo").unlink()
    assert available_bytes() is None
    assert describe_available() == "this system does not tell how much memory is available"
    check_memory(10**18, what="this")


def test_formats_bytes_for_people():
    assert [format_bytes(n) for n in (12, 1234, 28 * 10**8, 10**13)] == ["12 bytes", "1.2 kB", "2.8 GB", "10.0 TB"]
