import json
import os
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from rollcast.tools.runs.plot import draw, plot
from rollcast.tools.settings import PlotSettings
from tests.unit.learner.checkpoints.test_listing import make_run, write_checkpoint, write_records
from tests.unit.learner.runs.test_curves import run_of
from tests.unit.tools.printed import printed

RECORDS = [(step, float(step)) for step in range(0, 100, 10)]


def checkpointed(run: RunDirectory, *, has_ended: bool) -> RunDirectory:
    run.checkpoints_path.mkdir()
    write_checkpoint(run, 1, has_ended=has_ended)
    return run


def drawn(runs: list[RunDirectory], metric: str) -> tuple[Axes, list[str]]:
    axes = Figure().add_subplot()
    said = draw(axes, {"ppo CartPole-v1": runs}, metric)
    return axes, said


def points_of(axes: Axes, linestyle: str, marker: str = "None") -> list[list[list[float]]]:
    lines = [line for line in axes.get_lines() if (line.get_linestyle(), line.get_marker()) == (linestyle, marker)]
    # the line of the legend has no points
    return [line.get_xydata().tolist() for line in lines if len(line.get_xydata())]


def bands_of(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """Returns the smallest and the largest x and y of each band."""
    corners = [band.get_paths()[0].vertices for band in axes.collections]
    return [(xy.min(axis=0).tolist(), xy.max(axis=0).tolist()) for xy in corners]


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "beginning"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_draws_a_picture_of_each_kind(tmp_path: Path, suffix: str, beginning: bytes):
    runs = [run_of(tmp_path / f"run{seed}", RECORDS, seed=seed).path for seed in range(3)]
    out = tmp_path / f"curves{suffix}"
    said = printed(plot, PlotSettings, *runs, "--out", out, "--over", "seconds", "--threshold", 50)
    assert said == f"{out}: train/mean_return of ppo CartPole-v1 (median and quartiles of 3 runs)\n"
    assert out.read_bytes().startswith(beginning)


@pytest.mark.slow
def test_draws_the_runs_in_a_folder_that_have_returns(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    for seed in range(2):
        run_of(tmp_path / "runs" / f"run{seed}", RECORDS, seed=seed)
    empty, out = make_run(tmp_path / "runs", "empty"), tmp_path / "curves.svg"
    drawn, left_out = printed(plot, PlotSettings, tmp_path / "runs", "--out", out).splitlines()
    assert drawn == f"{out}: train/mean_return of ppo CartPole-v1 (median and quartiles of 2 runs)"
    assert left_out == f"left out, because no episode has ended or the settings are unreadable: {empty.path}"
    with pytest.raises(ConfigurationError, match=f"{empty.path}.*has no values of 'train/mean_return'"):
        printed(plot, PlotSettings, tmp_path / "runs", empty.path, "--out", out)
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigurationError, match=r"no settings.yaml, and no run in it; expected .* folder of such"):
        printed(plot, PlotSettings, tmp_path / "none", "--out", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "curves.gif"), "'curves.gif'; expected a file that ends with .png or .svg"),
        (("--metric", "loss"), "has no values of 'loss'"),
        (("--out", "/nowhere/curves.png"), "--out: there is no folder '/nowhere'; expected an existing one"),
    ],
)
def test_rejects_what_cannot_be_drawn(tmp_path: Path, arguments: tuple[str, ...], message: str):
    run = run_of(tmp_path / "run", RECORDS).path
    with pytest.raises(ConfigurationError, match=message):
        printed(plot, PlotSettings, run, *arguments)


def test_a_run_without_an_episode_is_told_and_its_empty_metrics_are_not_offered(tmp_path: Path):
    run = make_run(tmp_path)
    write_records(run, {"time": 1.0, "env_steps": 64, "train/mean_return": None, "ppo/entropy": 0.7})
    with pytest.raises(ConfigurationError) as refused:
        printed(plot, PlotSettings, run.path)
    assert "'train/mean_return'; no episode has ended yet; expected one of ppo/entropy; see" in str(refused.value)


def test_a_picture_replaces_no_pipe_and_waits_for_none(tmp_path: Path):
    run, pipe = run_of(tmp_path / "run", RECORDS).path, tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match=r"--out: '.*pipe.png' is not a regular file"):
        printed(plot, PlotSettings, run, "--out", pipe)
    assert pipe.is_fifo()


def test_solved_seeds_that_end_early_keep_their_return_and_are_marked(tmp_path: Path):
    solved = [
        checkpointed(run_of(tmp_path / f"solved{seed}", [(0, 20.0), (10, 475.0)], seed=seed), has_ended=True)
        for seed in range(2)
    ]
    unsolved = run_of(tmp_path / "unsolved", [(0, 20.0), (10, 100.0), (20, 150.0), (30, 180.0)], seed=2)
    axes, said = drawn([*solved, checkpointed(unsolved, has_ended=True)], "train/mean_return")
    assert points_of(axes, "-") == [[[0, 20], [10, 475]]]
    assert points_of(axes, "--") == [[[10, 475], [20, 475], [30, 475]]]
    # a dot at the end of each run
    assert points_of(axes, "None", "o") == [[[10, 475], [10, 475], [30, 180]]]
    assert said == ["2 of 3 runs of ppo CartPole-v1 have ended early: from then on they count with their last value"]


def test_runs_that_were_stopped_are_not_carried_on_and_are_marked(tmp_path: Path):
    stopped = checkpointed(run_of(tmp_path / "stopped", [(0, 1.0), (10, 2.0)]), has_ended=False)
    whole = checkpointed(run_of(tmp_path / "whole", [(0, 1.0), (10, 4.0), (20, 8.0)], seed=1), has_ended=True)
    axes, said = drawn([stopped, whole], "train/mean_return")
    assert points_of(axes, "--") == [[[10, 3], [20, 8]]]
    assert points_of(axes, "None", "o") == [[[20, 8]]]
    assert points_of(axes, "None", "x") == [[[10, 2]]]
    assert said == [
        "1 of 2 runs of ppo CartPole-v1 was stopped, has failed or still trains: it does not count after that"
    ]


def test_evaluations_of_one_run_have_their_confidence_interval(tmp_path: Path):
    run = run_of(tmp_path / "run")
    records = [
        {"time": 1.0, "env_steps": 10, "eval/mean_return": 5.0, "eval/ci_low": 3.0, "eval/ci_high": 7.0},
        {"time": 2.0, "env_steps": 15, "train/mean_return": 9.0},
        {"time": 3.0, "env_steps": 20, "eval/mean_return": 6.0, "eval/ci_low": 5.0, "eval/ci_high": 8.0},
        # of one episode: it has no interval
        {"time": 4.0, "env_steps": 30, "eval/mean_return": 6.0, "eval/ci_low": None, "eval/ci_high": None},
    ]
    run.metrics_path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    axes, _ = drawn([run], "eval/mean_return")
    assert bands_of(axes) == [([10, 3], [20, 8])]
    assert "95 % confidence" in axes.get_legend_handles_labels()[1][0]
    axes, _ = drawn([run, run], "eval/mean_return")
    assert bands_of(axes) == [([10, 5], [30, 6])]
