import json
import time
from pathlib import Path

import pytest

from rollcast.tools.runs.ls import ls
from rollcast.tools.settings import LsSettings
from tests.unit.learner.checkpoints.test_listing import make_run, write_records
from tests.unit.tools.printed import printed


def test_lists_runs_with_the_newest_first(tmp_path: Path):
    now = time.time()
    for name, age_s, steps in (("old", 7300.0, 5000), ("new", 130.0, 12_000)):
        write_records(
            make_run(tmp_path, name), {"time": now - age_s, "env_steps": steps, "train/mean_return": age_s / 100}
        )
    head, new, old = printed(ls, LsSettings, tmp_path).splitlines()
    assert head.split()[:3] == ["run", "algorithm", "environment"]
    assert new.split() == [
        str(tmp_path / "new"),
        "ppo",
        "CartPole-v1",
        "1.3",
        "-",
        "12,000",
        "2",
        "min",
        "ago",
        "empty",
    ]
    assert old.split()[0] == str(tmp_path / "old")
    assert "2 h ago" in old
    # a folder and a run in it: once
    assert len(printed(ls, LsSettings, tmp_path, tmp_path / "old").splitlines()) == 3


def test_json_has_the_same(tmp_path: Path):
    write_records(make_run(tmp_path, "a"), {"time": 5.0, "env_steps": 7, "eval/mean_return": 2.5})
    (run,) = json.loads(printed(ls, LsSettings, tmp_path, "--json-output"))
    assert run == {
        "path": str(tmp_path / "a"),
        "state": "empty",
        "algorithm": "ppo",
        "env_id": "CartPole-v1",
        "seed": 3,
        "env_steps": 7,
        "mean_return": None,
        "eval_mean_return": 2.5,
        "written": 5.0,
    }


def test_no_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert printed(ls, LsSettings, tmp_path) == f"there is no run in {tmp_path}\n"
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", "mine")
    assert "runs/mine" in printed(ls, LsSettings)
