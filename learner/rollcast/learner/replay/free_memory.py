"""Whether the machine, and the learner's GPU, have the memory that a buffer will take. Asked before it is allocated."""

from pathlib import Path
from typing import Final

import torch

from rollcast.services.errors import ConfigurationError

_MEMINFO: Final = Path("/proc/meminfo")
# Limit and use of the container: control groups of version 2, and of version 1.
_CGROUPS: Final = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)


def available_bytes() -> int | None:
    """Bytes this process can still take: of the machine, or of its container where that is less.

    Returns:
        The bytes; None where the system does not say (it is not Linux).
    """
    limits = [free for free in (_machine_bytes(), *(_cgroup_bytes(*files) for files in _CGROUPS)) if free is not None]
    return min(limits) if limits else None


def free_device_bytes(device: torch.device) -> int | None:
    """Bytes that nobody has taken of a device's own memory.

    Args:
        device: The learner's.

    Returns:
        The bytes; None where it has none of its own, as a CPU, or does not say.
    """
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def check_memory(n_bytes: int, *, what: str) -> None:
    """Refuses what does not fit into main memory.

    Pages are taken when they are first written, so without this a buffer that does not fit would be killed hours later.

    Args:
        n_bytes: What will be allocated.
        what: Whose it is, with the numbers it comes from, for the message.

    Raises:
        ConfigurationError: If the machine, or the container, has not got as much.
    """
    available = available_bytes()
    if available is not None and n_bytes > available:
        raise ConfigurationError(
            f"{what} takes {format_bytes(n_bytes)}, and {format_bytes(available)} are available; expected at most what "
            "is available; lower the buffer's capacity, set its capacity_bytes, or give the machine or container more"
        )


def check_device_memory(n_bytes: int, device: torch.device, *, what: str) -> None:
    """Refuses what does not fit into the memory of a device.

    Args:
        n_bytes: What will be allocated there.
        device: Where.
        what: See `check_memory`.

    Raises:
        ConfigurationError: If it has not got as much.
    """
    free = free_device_bytes(device)
    if free is not None and n_bytes > free:
        raise ConfigurationError(
            f"{what} takes {format_bytes(n_bytes)} on {device}, and {format_bytes(free)} are free there; expected at "
            "most what is free; lower the buffer's capacity, set its capacity_bytes, or keep it in main memory with "
            "device 'cpu'"
        )


def describe_available(device: torch.device | None = None) -> str:
    """What there is, for the line that says what a buffer will take.

    Args:
        device: Where some of it will be; None, or one without memory of its own: none of it.

    Returns:
        "12.3 GB of memory are available", and what is free on the device; or that the system does not say.
    """
    available = available_bytes()
    text = "this system does not say how much memory is available"
    if available is not None:
        text = f"{format_bytes(available)} of memory are available"
    free = None if device is None else free_device_bytes(device)
    return text if free is None else f"{text}, and {format_bytes(free)} on {device}"


def format_bytes(n_bytes: int) -> str:
    """A number of bytes as people read it.

    Args:
        n_bytes: Any number.

    Returns:
        "28.2 GB", "512 bytes".
    """
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
        # Pages of files count as used, and are given back as soon as somebody needs memory.
        pages = dict(line.split() for line in statistics.read_text(encoding="ascii").splitlines())
        return max(free + int(pages.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        return None
