import json
from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.tools.runs.compare import compare
from rollcast.tools.settings import CompareSettings
from tests.unit.learner.checkpoints.test_listing import make_run, write_checkpoint, write_records
from tests.unit.tools.printed import printed


def test_shows_only_what_differs_and_how_far_runs_came(tmp_path: Path):
    first = make_run(tmp_path, "a", ppo={"discount": 0.9, "n_epochs": 4}, run_dir="x", hidden_sizes=[64])
    second = make_run(tmp_path, "b", ppo={"discount": 0.99, "n_epochs": 4}, run_dir="y", hidden_sizes=[64], seed=4)
    write_checkpoint(first, 1, has_ended=True)
    write_records(first, {"time": 1.0, "env_steps": 1000, "train/mean_return": 20.0})
    rows = [line.split() for line in printed(compare, CompareSettings, first.path, second.path).splitlines()]
    assert rows == [
        [str(first.path), str(second.path)],
        ["ppo.discount", "0.9", "0.99"],
        ["seed", "3", "4"],
        ["state", "finished", "empty"],
        ["env", "steps", "1,000", "0"],
        ["return", "20.0", "-"],
        ["evaluation", "-", "-"],
    ]


def test_a_setting_that_only_one_has_is_a_difference(tmp_path: Path):
    first, second = make_run(tmp_path, "a", frame_stack=4), make_run(tmp_path, "b")
    found = json.loads(printed(compare, CompareSettings, first.path, second.path, "--json-output"))
    assert found["settings"] == {"frame_stack": [4, None]}


def test_equal_runs_are_said_to_be_equal(tmp_path: Path):
    first, second = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    assert "all the same" in printed(compare, CompareSettings, first.path, second.path)


def test_a_folder_of_runs_is_each_of_them_once(tmp_path: Path):
    paths = [make_run(tmp_path, name).path for name in ("a", "b", "c")]
    found = json.loads(printed(compare, CompareSettings, tmp_path, paths[1], "--json-output"))
    assert found["runs"] == list(map(str, paths))


def test_what_is_no_run_is_refused(tmp_path: Path):
    first = make_run(tmp_path, "a")
    with pytest.raises(ConfigurationError, match="is not a run: the folder does not exist"):
        printed(compare, CompareSettings, first.path, tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"RUNS: 1 run in .*; expected at least 2 runs; name more"):
        printed(compare, CompareSettings, first.path)
