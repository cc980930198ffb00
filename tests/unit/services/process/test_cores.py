import os
from pathlib import Path

import pytest

from rollcast.services.process.cores import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def cores(folder: Path, groups: str, files: dict[str, str]) -> int:
    """Counts the cores of a process that is in `groups`, where the files below the mount are these."""
    for name, text in files.items():
        path = folder / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "groups").write_text(groups)
    return usable_cores(folder / "mounted", folder / "groups")


V1 = {"cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "100000 100000\n"}, 1, id="one core"),
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 2, id="a part of a core counts as one"),
        pytest.param("0::/\n", {"cpu.max": "5000 100000\n"}, 1, id="less than a core"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, 8, id="no quota"),
        pytest.param("0::/\n", {"cpu.max": "1600000 100000\n"}, 8, id="more than the affinity"),
        pytest.param("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3, id="around it"),
        pytest.param("0::/\n", {}, 8, id="the root, which has no quota"),
        pytest.param("0::/../x\n", {"cpu.max": "200000 100000\n"}, 2, id="named from outside"),
        pytest.param("0::/\n", {"cpu.max": "what is this\n"}, 8, id="unreadable"),
        pytest.param("4:cpu,cpuacct:/a\n", {**V1, "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n"}, 3, id="version 1"),
        pytest.param("4:cpu,cpuacct:/a\n", {**V1, "cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n"}, 8, id="version 1, none"),
        pytest.param(
            "4:cpu:/docker/1f\n",
            {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            1,
            id="version 1 in a container",
        ),
        pytest.param("3:cpuset:/a\n", {"cpuset/a/cpu.max": "100000 100000\n"}, 8, id="another controller"),
    ],
)
def test_quota_of_control_groups_limits_the_cores(tmp_path: Path, groups: str, files: dict[str, str], expected: int):
    assert cores(tmp_path, groups, files) == expected


def test_a_system_without_control_groups_has_the_cores_of_its_affinity(tmp_path: Path):
    assert usable_cores(tmp_path, tmp_path / "missing") == 8
