import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from rollcast.learner.runs.curves import Curve, alike, read_curve, spread_of
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError


def run_of(path: Path, records: list[tuple[int, float | None]] = (), **settings: object) -> RunDirectory:
    path.mkdir()
    lines = [
        json.dumps({"time": 100.0 + i, "env_steps": steps, "train/mean_return": value})
        for i, (steps, value) in enumerate(records)
    ]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    given = {"algorithm": "ppo", "env_id": "CartPole-v1", "seed": 0, "ppo": {"n_epochs": 10}, **settings}
    (path / "settings.yaml").write_text(yaml.safe_dump(given))
    return RunDirectory(path)


def test_curve_has_the_finite_values_over_steps_or_seconds(tmp_path: Path):
    run = run_of(tmp_path / "run", [(10, None), (20, 1.0), (30, float("nan")), (40, 3.0)])
    with run.metrics_path.open("a") as file:
        file.write('{"time": 1, "env_st')
    assert read_curve(run, "train/mean_return").x.tolist() == [20.0, 40.0]
    assert read_curve(run, "train/mean_return").y.tolist() == [1.0, 3.0]
    assert read_curve(run, "train/mean_return", over_seconds=True).x.tolist() == [1.0, 3.0]


def test_missing_metric_is_refused_with_those_that_are_there(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no values of 'loss'; expected one of train/mean_return"):
        read_curve(run_of(tmp_path / "run", [(1, 2.0)]), "loss")
    with pytest.raises(ConfigurationError, match="it has no records yet"):
        read_curve(run_of(tmp_path / "new"), "loss")


def test_spread_is_of_the_curves_that_have_begun_and_not_been_cut_off():
    curves = [
        Curve(np.array([0.0, 10.0]), np.array([0.0, 4.0])),
        Curve(np.array([5.0, 10.0, 20.0]), np.array([2.0, 8.0, 9.0])),
    ]
    spread = spread_of(curves)
    assert spread.all_until == 10.0
    assert spread.x.tolist() == [0.0, 5.0, 10.0, 20.0]
    assert spread.median.tolist() == [0.0, 1.0, 6.0, 9.0]
    assert spread.low.tolist() == [0.0, 0.5, 5.0, 9.0]
    assert spread.high.tolist() == [0.0, 1.5, 7.0, 9.0]


def test_runs_that_differ_in_their_seed_only_are_alike(tmp_path: Path):
    runs = [
        run_of(tmp_path / "a", seed=0, run_dir="here"),
        run_of(tmp_path / "b", seed=1),
        run_of(tmp_path / "c", ppo={"n_epochs": 4}),
        run_of(tmp_path / "d", algorithm="dqn"),
    ]
    groups = alike(runs)
    assert {name: [run.path.name for run in group] for name, group in groups.items()} == {
        "ppo CartPole-v1 ppo.n_epochs=10": ["a", "b"],
        "ppo CartPole-v1 ppo.n_epochs=4": ["c"],
        "dqn CartPole-v1": ["d"],
    }


def test_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="is not a run: the folder does not exist"):
        alike([RunDirectory(tmp_path / "nowhere")])
