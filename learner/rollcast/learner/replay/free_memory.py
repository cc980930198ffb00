"""Checks that the machine and the learner's GPU have enough memory for a buffer before its allocation."""

from pathlib import Path
from typing import Final

import torch

from rollcast.services.errors import ConfigurationError

_MEMINFO: Final = Path("/proc/meminfo")
# Files with the limit and the use of the container: control groups of version 2, and of version 1.
_CGROUPS: Final = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)


def available_bytes() -> int | None:
    """Returns the bytes that this process can still allocate on this machine, within the limits of its container.

    None: the system does not report them, because it is not Linux.
    """
    limits = [free for free in (_machine_bytes(), *(_cgroup_bytes(*files) for files in _CGROUPS)) if free is not None]
    return min(limits) if limits else None


def free_device_bytes(device: torch.device) -> int | None:
    """Returns the free bytes of a device's separate memory; None if it has no separate memory, like a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def check_memory(n_bytes: int, device: torch.device | None = None, device_bytes: int = 0, *, what: str) -> None:
    """Refuses a buffer that does not fit into main memory, or into the memory of a device.

    Pages are allocated at the first write. Without this check, the system would kill the process hours later.

    Args:
        n_bytes: Bytes to be allocated in main memory.
        device: A device for columns; None: no device.
        device_bytes: Bytes to be allocated in the device's own memory.
        what: The buffer and its size, for the message.

    Raises:
        ConfigurationError: The machine, the container or the device has less memory.
    """
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise ConfigurationError(
            f"{what} takes {format_bytes(n_bytes)}, and {format_bytes(available)} are available; expected at most "
            "that much; lower the buffer's capacity, set capacity_bytes, or give the machine or container more"
        )
    free = None if device is None else free_device_bytes(device)
    if free is not None and device_bytes > free:
        raise ConfigurationError(
            f"{what} takes {format_bytes(device_bytes)} on {device}, and {format_bytes(free)} are free there; "
            "expected at most that much; lower the buffer's capacity, set capacity_bytes, or keep it in main "
            "memory with "
            "device 'cpu'"
        )


def describe_available(device: torch.device | None = None) -> str:
    """Describes the memory available, for the line that announces a buffer.

    Args:
        device: A device for columns; None: no device.

    Returns:
        "12.3 GB of memory are available", with the device's free memory; or that the system does not tell.
    """
    available = available_bytes()
    text = "this system does not tell how much memory is available"
    if available is not None:
        text = f"{format_bytes(available)} of memory are available"
    free = None if device is None else free_device_bytes(device)
    return text if free is None else f"{text}, and {format_bytes(free)} on {device}"


def format_bytes(n_bytes: int) -> str:
    """Formats a number of bytes for display: "28.2 GB", "512 bytes"."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} bytes"


def _machine_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _cgroup_bytes(limit: Path, used: Path, statistics: Path) -> int | None:
    try:
        text = limit.read_text(encoding="ascii").strip()
        if text == "max":
            return None
        free = int(text) - int(used.read_text(encoding="ascii"))
        # Cached pages of files count as used, but the system frees them when memory is needed.
        pages = dict(line.split() for line in statistics.read_text(encoding="ascii").splitlines())
        return max(free + int(pages.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        return None
