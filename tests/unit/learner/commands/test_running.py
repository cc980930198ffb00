import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollcast.learner.commands.running import print_summary
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.summary import TrainingSummary
from tests.unit.learner.checkpoints.test_listing import make_run, write_checkpoint

SUMMARY = TrainingSummary(
    env_steps=1000,
    seconds=2.0,
    env_steps_per_second=500.0,
    updates=10,
    mean_return=0.664,
    solved=False,
    policy_version=10,
    policy_lag_mean=1.0,
    policy_lag_max=2,
    evaluations=2,
    eval_mean_return=0.0312,
    best_eval_mean_return=-214.26,
)


def summary_lines(
    *,
    stops_on_evaluation: bool = False,
    mean_return: float = 0.664,
    folder: Path = Path("runs/mine"),
    plays_here: bool = True,
    resume_with: str = "train",
) -> list[str]:
    """Returns the lines of a summary for a run with a goal of 0.7."""
    output = io.StringIO()
    run = SimpleNamespace(stop_return=0.7, stops_on_evaluation=stops_on_evaluation, run_directory=RunDirectory(folder))
    summary = dataclasses.replace(SUMMARY, mean_return=mean_return)
    print_summary(output, summary, run, "rollcast", plays_here=plays_here, resume_with=resume_with)
    return output.getvalue().splitlines()


@pytest.mark.parametrize(("value", "text"), [(0.664, "0.664"), (1.0, "1"), (476.52, "476.5")])
def test_returns_have_digits_that_tell_them_from_the_goal(value: float, text: str):
    lines = summary_lines(mean_return=value)
    assert f"mean return    {text} (not solved: 0.7 over 100 episodes)" in lines
    assert "evaluation     0.0312, best of 2: -214.3" in lines


def test_the_goal_stands_beside_the_return_that_decides():
    assert "evaluation     0.0312, best of 2: -214.3 (not solved: 0.7)" in summary_lines(stops_on_evaluation=True)


def test_only_a_run_with_a_policy_can_be_looked_at(tmp_path: Path):
    look = f"look at it     rollcast evaluate {tmp_path}"
    assert look not in summary_lines(folder=tmp_path)
    RunDirectory(tmp_path).policy_path("last").touch()
    assert look in summary_lines(folder=tmp_path)


def test_only_a_stopped_run_with_a_checkpoint_can_be_continued(tmp_path: Path):
    run = make_run(tmp_path, "a run")
    assert not [line for line in summary_lines(folder=run.path) if "--resume" in line]
    write_checkpoint(run, 1, has_ended=False)
    with run.locked():
        lines = summary_lines(folder=run.path)
    assert lines[-1] == f"continue it    rollcast train --resume '{run.path}'"
    lines = summary_lines(folder=run.path, resume_with="learner")
    assert lines[-1] == f"continue it    rollcast learner --resume '{run.path}'"
    assert not [line for line in summary_lines(folder=run.path, resume_with="") if "--resume" in line]
    write_checkpoint(run, 2, has_ended=True)
    assert not [line for line in summary_lines(folder=run.path) if "--resume" in line]


def test_a_policy_whose_environment_is_elsewhere_can_be_served(tmp_path: Path):
    RunDirectory(tmp_path).policy_path("last").touch()
    assert summary_lines(folder=tmp_path, plays_here=False)[-1] == f"serve it       rollcast serve-policy {tmp_path}"
