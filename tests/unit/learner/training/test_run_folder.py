"""Tests of the line that says from where a run continues."""

from pathlib import Path

import pytest

from rollcast.learner.checkpoints.manifest import CheckpointInfo
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.run_folder import describe_resume


@pytest.mark.parametrize(
    ("has_ended", "end"),
    [(False, ""), (True, "; it has ended, and continues only with a higher --total-steps or --stop-return")],
)
def test_a_run_that_has_ended_says_what_continues_it(tmp_path: Path, has_ended: bool, end: str):
    info = CheckpointInfo(
        n_updates=7,
        env_steps=6_897,
        policy_version=8,
        mean_return=None,
        has_ended=has_ended,
        software_version="1",
    )
    line = describe_resume(RunDirectory(tmp_path), (tmp_path, info))
    assert line == f"resuming {tmp_path}: 7 updates, 6,897 env steps{end}"
