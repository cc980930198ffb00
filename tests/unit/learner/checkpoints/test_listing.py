import json
from pathlib import Path

import pytest

from rollcast.learner.checkpoints.listing import describe_run, find_runs
from rollcast.learner.checkpoints.manifest import write_manifest
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from tests.unit.learner.checkpoints.test_store import info


def make_run(root: Path, name: str = "a", **settings: object) -> RunDirectory:
    run = RunDirectory.create(root, name)
    run.write_settings({"algorithm": "ppo", "env_id": "CartPole-v1", "seed": 3, **settings})
    return run


def write_records(run: RunDirectory, *records: object) -> None:
    run.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def write_checkpoint(run: RunDirectory, number: int, *, has_ended: bool) -> Path:
    folder = run.checkpoints_path / f"{number:08d}"
    folder.mkdir()
    write_manifest(folder, info(number, has_ended=has_ended))
    return folder


def test_a_run_is_described_by_its_newest_values(tmp_path: Path):
    run = make_run(tmp_path)
    write_records(
        run,
        {"time": 10.0, "env_steps": 100, "train/mean_return": 1.5},
        {"time": 11.0, "env_steps": 100, "eval/mean_return": 9.0},
        {"time": 11.5, "env_steps": 200, "train/mean_return": None},
        # of a policy before the newest
        {"time": 12.0, "env_steps": 150, "eval/mean_return": 9.0},
        ["no record"],
    )
    with run.metrics_path.open("a") as file:
        file.write('{"time": 13.0, "env_st')
    summary = describe_run(run)
    assert (summary.algorithm, summary.env_id, summary.seed) == ("ppo", "CartPole-v1", 3)
    assert (summary.env_steps, summary.written) == (200, 12.0)
    assert (summary.mean_return, summary.eval_mean_return) == (1.5, 9.0)


def test_the_newest_values_are_found_at_the_end_of_a_long_file(tmp_path: Path):
    run = make_run(tmp_path)
    records = [{"time": float(i), "env_steps": i, "train/mean_return": float(i), "x": "y" * 1000} for i in range(2000)]
    write_records(run, *records)
    assert describe_run(run).mean_return == 1999.0


def test_state_is_that_of_lock_and_newest_checkpoint(tmp_path: Path):
    run = make_run(tmp_path)
    assert describe_run(run).state == "empty"
    write_checkpoint(run, 1, has_ended=False)
    assert describe_run(run).state == "stopped"
    newest = write_checkpoint(run, 2, has_ended=True)
    assert describe_run(run).state == "finished"
    with run.locked():
        assert describe_run(run).state == "training", "it was resumed with more steps"
        with run.serving():
            assert describe_run(run).state == "serving"
        assert describe_run(run).state == "training"
    assert describe_run(run).state == "finished"
    next(newest.iterdir()).write_text("damaged")
    assert describe_run(run).state == "stopped"


def test_a_run_whose_server_was_killed_does_not_serve(tmp_path: Path):
    run = make_run(tmp_path)
    write_checkpoint(run, 1, has_ended=True)
    (run.path / ".serving").touch()
    assert describe_run(run).state == "finished"
    with run.locked():
        assert describe_run(run).state == "training", "the next process resumes it"


def test_a_log_without_a_checkpoint_can_be_resumed(tmp_path: Path):
    run = make_run(tmp_path)
    run.log_path.mkdir()
    (run.log_path / "00000000.log").write_bytes(b"")
    assert describe_run(run).state == "stopped"


def test_settings_that_cannot_be_read_are_a_state(tmp_path: Path):
    run = make_run(tmp_path)
    run.settings_path.write_text("- no\n- settings\n")
    assert describe_run(run).state == "unreadable"


def test_runs_are_found_at_any_depth_and_a_run_is_one(tmp_path: Path):
    paths = [make_run(tmp_path, name).path for name in ("a", "b/c", "b/d")]
    assert [run.path for run in find_runs(tmp_path)] == paths
    assert [run.path for run in find_runs(paths[0])] == paths[:1]
    with pytest.raises(ConfigurationError, match="is not a folder; expected a run, or a folder of runs"):
        find_runs(tmp_path / "nowhere")
