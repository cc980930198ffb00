"""Tests of the lines that say from where a run continues, and why it does not."""

from pathlib import Path

from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.run_folder import describe_limits, describe_resume


def test_the_line_about_a_resumed_run_says_from_where_it_continues(tmp_path: Path):
    info = CheckpointInfo(
        n_updates=7,
        env_steps=6_897,
        policy_version=8,
        mean_return=None,
        has_ended=False,
        software_version="1",
    )
    line = describe_resume(RunDirectory(tmp_path), (tmp_path, info))
    assert line == f"resuming {tmp_path}: 7 updates, 6,897 env steps"


def test_a_run_that_has_reached_two_limits_names_both():
    line = describe_limits({"--stop-return": "20 (mean return 21.5)", "--total-steps": "640 (672 env steps)"})
    assert line == (
        "the run had already reached --stop-return 20 (mean return 21.5) and --total-steps 640 (672 env steps); "
        "to train it further, raise --stop-return and --total-steps"
    )
