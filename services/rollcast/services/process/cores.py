"""Determines the number of cores that a process may use, by its affinity and its control group's quota."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def usable_cores(control_groups: Path = _CONTROL_GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Returns the number of cores that this process may keep busy, at least 1.

    A container with `--cpus 1.5` sees all cores of its machine, but may use two.

    Args:
        control_groups: The mount point of control groups, version 1 or 2.
        own_groups: The file that lists the groups of this process.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([n_cores, *map(math.ceil, _quotas(control_groups, own_groups))]))


def _quotas(control_groups: Path, own_groups: Path) -> Iterator[float]:
    """Yields the quotas of this process's groups and of their parents, in cores."""
    try:
        groups = [line.split(":", 2) for line in own_groups.read_text().splitlines()]
    except OSError:
        return  # not Linux
    for _, controllers, path in groups:
        # version 2 has one group for everything, and names no controllers
        mounted = control_groups / controllers
        own = mounted / path.lstrip("/")
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container, the path may be that outside the container. The mount point then shows the container's own
        # group.
        for folder in (own, *own.parents[: len(own.parts) - len(mounted.parts)]):
            for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                try:
                    quota, period = " ".join((folder / name).read_text() for name in files).split()
                    if int(period) > 0 and quota != "max" and int(quota) > 0:  # -1: none, in version 1
                        yield int(quota) / int(period)
                except (OSError, ValueError):
                    continue
