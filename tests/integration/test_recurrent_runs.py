"""Runs with a recurrent policy: trained by actors in processes, resumed, evaluated, and recorded."""

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor import load_policy
from rollcast.services.rollouts.recording import read_rollouts
from tests.processes import rollcast

pytestmark = pytest.mark.slow

ENV = ("--env-id", "rollcast.actor.environments.masked_cartpole:make")
SMALL = ("--n-rollout-steps", 16, "--recurrence", "lstm", "--recurrent-size", 8, "--hidden-sizes", 8)


def train(run_dir: Path, *arguments: object) -> None:
    done = rollcast("train", *ENV, *SMALL, "--stop-return", 1e9, "--run-dir", run_dir, *arguments)
    assert done.returncode == 0, done.stderr


R2D2 = (
    *("--algorithm", "r2d2", "--replay.sequence-length", 12, "--replay.burn-in", 4, "--replay.min-size", 20),
    *("--batch-size", 8, "--replay.samples-per-insert", 4),
)


@pytest.mark.parametrize("algorithm", [(), R2D2], ids=["impala", "r2d2"])
def test_run_of_actors_in_processes_is_resumed_evaluated_and_recorded(tmp_path: Path, algorithm: tuple[object, ...]):
    run = tmp_path / "run"
    train(run, "--total-steps", 1000, "--n-actors", 2, "--durable", *algorithm)
    done = rollcast("train", "--resume", run, "--total-steps", 1500)
    assert done.returncode == 0, done.stderr
    done = rollcast("evaluate", run, "--n-episodes", 2)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "played.rollouts"
    done = rollcast("record", "--policy", run, "--output", path, "--rollouts", 2, "--n-rollout-steps", 16)
    assert done.returncode == 0, done.stderr
    first, second = read_rollouts(path)
    assert first.substeps["0"].initial_state.shape == (first.n_envs, 16)
    assert not first.substeps["0"].initial_state.any()
    assert second.substeps["0"].initial_state.any()
    assert load_policy(run, name="last").act(np.zeros(2, np.float32)) in (0, 1)


def test_begins_with_policy_of_the_same_memory_only(tmp_path: Path):
    train(tmp_path / "one", "--total-steps", 600, "--actor-kind", "sequential")
    train(tmp_path / "two", "--total-steps", 600, "--actor-kind", "sequential", "--initial-policy", tmp_path / "one")
    options = ("--total-steps", 600, "--actor-kind", "sequential", "--initial-policy", tmp_path / "one")
    done = rollcast("train", *ENV, *SMALL, "--recurrence", "gru", "--run-dir", tmp_path / "three", *options)
    assert done.returncode == 2
    assert "has recurrence lstm; expected gru, as of this run; set --recurrence" in done.stderr


def test_recording_with_states_fills_the_buffer_of_r2d2_if_every_sequence_has_one(tmp_path: Path):
    train(tmp_path / "one", "--total-steps", 600, "--actor-kind", "sequential", *R2D2)
    short, long = tmp_path / "short.rollouts", tmp_path / "long.rollouts"
    for path, n_steps in ((short, 8), (long, 32)):
        lengths = ("--rollouts", 20, "--n-rollout-steps", n_steps)
        done = rollcast("record", "--policy", tmp_path / "one", "--output", path, *lengths)
        assert done.returncode == 0, done.stderr
    options = ("--total-steps", 600, "--actor-kind", "sequential", *R2D2, "--initial-data")
    train(tmp_path / "two", *options, short)
    done = rollcast("train", *ENV, *SMALL, *options, long, "--run-dir", tmp_path / "three")
    assert done.returncode == 1
    assert "substep '0' has no recurrent state; expected" in done.stderr
    assert "in rollouts of 16 steps" in done.stderr


# The same seed and actors in the learner's thread: each run is the same again.
BY_STEPS = ("--actor-kind", "sequential", "--eval-interval-steps", 5000)
LEARNS = ("--recipe", "ppo-cartpole-masked", *BY_STEPS)


@pytest.mark.parametrize("recurrence", ["lstm", "gru"])
def test_policy_with_a_memory_learns_what_one_without_cannot(tmp_path: Path, recurrence: str):
    summary = tmp_path / "summary.json"
    options = ("--stop-return", 300, "--run-dir", tmp_path / "run", "--summary-json", summary)
    arguments = ("train", *LEARNS, *options, "--recurrence", recurrence, "--total-steps", 60_000)
    done = rollcast(*arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(summary.read_text())["best_eval_mean_return"] >= 300


def test_r2d2_learns_what_dqn_cannot(tmp_path: Path):
    summary = tmp_path / "summary.json"
    options = ("--run-dir", tmp_path / "run", "--summary-json", summary, "--seed", 1, "--stop-return", 150)
    done = rollcast("train", "--recipe", "r2d2-cartpole-masked", *BY_STEPS, *options, "--total-steps", 30_000)
    assert done.returncode == 0, done.stderr
    assert json.loads(summary.read_text())["best_eval_mean_return"] >= 150


def test_dqn_does_not_learn_where_velocities_are_hidden(tmp_path: Path):
    summary = tmp_path / "summary.json"
    options = ("--run-dir", tmp_path / "run", "--summary-json", summary, "--stop-return", 150)
    done = rollcast("train", "--recipe", "dqn-cartpole", *ENV, *BY_STEPS, *options, "--total-steps", 10_000)
    assert done.returncode == 0, done.stderr
    assert json.loads(summary.read_text())["best_eval_mean_return"] < 100


def test_policy_without_a_memory_does_not_learn_where_velocities_are_hidden(tmp_path: Path):
    summary = tmp_path / "summary.json"
    options = ("--run-dir", tmp_path / "run", "--summary-json", summary)
    done = rollcast("train", *LEARNS, *options, "--recurrence", "none", "--total-steps", 30_000)
    assert done.returncode == 0, done.stderr
    assert json.loads(summary.read_text())["best_eval_mean_return"] < 100
