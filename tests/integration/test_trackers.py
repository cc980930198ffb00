"""`--track` with the real trackers, without account and network."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.processes import completed

pytestmark = pytest.mark.slow

SMALL = ("--actor-kind", "sequential", "--envs-per-actor", 4, "--batch-size", 4, "--log-interval-s", 0.05)
SMALL += ("--algorithm", "impala")


def train_twice(tracker: str, folder: Path, **variables: str) -> Path:
    """Trains, resumes, and returns the run's folder."""
    run = folder / "runs" / "mine"
    of_tracker = ("--track", tracker, "--track-project", "robots")
    for arguments in (
        ("--run-dir", run, *SMALL, *of_tracker, "--total-steps", 2000),
        ("--resume", run, "--total-steps", 4000),
    ):
        done = completed("train", *arguments, HOME=str(folder), **variables)
        assert "does not take records" not in done.stderr
    return run


def steps_of(run: Path) -> set[int]:
    return {json.loads(line)["env_steps"] for line in (run / "metrics.jsonl").read_text().splitlines()}


def test_trackio_has_every_record_of_both_parts_in_one_run(tmp_path: Path):
    run = train_twice("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio" / "robots.db") as base:
        rows = base.execute("select run_name, step from metrics").fetchall()
    assert {name for name, _ in rows} == {"mine"}
    assert {step for _, step in rows} >= steps_of(run)


def test_wandb_writes_to_the_runs_folder_while_it_is_offline(tmp_path: Path):
    run = train_twice("wandb", tmp_path, WANDB_MODE="offline")
    identity = (run / "wandb.run").read_text()
    parts = sorted((run / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    assert all(part.name.endswith(f"-{identity}") for part in parts)
    assert all(list(part.glob("*.wandb")) for part in parts)


def test_mlflow_goes_on_with_the_run(tmp_path: Path):
    run = train_twice("mlflow", tmp_path, MLFLOW_TRACKING_URI=f"file:{tmp_path}/mlruns", MLFLOW_ALLOW_FILE_STORE="true")
    identity = (run / "mlflow.run").read_text()
    (folder,) = [path for path in (tmp_path / "mlruns").glob("*/*") if path.name == identity]
    returns = (folder / "metrics" / "train" / "updates").read_text().splitlines()
    assert {int(line.split()[2]) for line in returns} >= steps_of(run)
    assert (folder / "params" / "algorithm").read_text() == "impala"


def test_a_run_is_sent_afterwards(tmp_path: Path):
    run = tmp_path / "mine"
    completed("train", "--run-dir", run, *SMALL, "--total-steps", 2000)
    variables = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = completed("track", run, "--to", "mlflow", HOME=str(tmp_path), **variables)
    assert f"records of {run} are in mlflow, project rollcast" in done.stdout
    (updates,) = (tmp_path / "mlruns").glob("*/*/metrics/train/updates")
    assert {int(line.split()[2]) for line in updates.read_text().splitlines()} == steps_of(run)
