from pathlib import Path

import pytest
import torch

from rollcast.learner.replay import free_memory as memory
from rollcast.learner.replay.free_memory import (
    available_bytes,
    check_memory,
    describe_available,
    format_bytes,
    free_device_bytes,
)
from rollcast.services.errors import ConfigurationError


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
