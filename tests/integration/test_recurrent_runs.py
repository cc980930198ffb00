"""Runs with a recurrent policy that sees several frames: trained in processes, resumed, evaluated, recorded."""

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor import load_policy
from rollcast.services.rollouts.recording import read_rollouts
from tests.processes import completed, refused

pytestmark = pytest.mark.slow

ENV = ("--env-id", "rollcast.actor.environments.masked_cartpole:make")
K = 4
SMALL = ("--n-rollout-steps", 16, "--recurrence", "lstm", "--recurrent-size", 8, "--hidden-sizes", 8)
STACKED = ("--frame-stack", K, "--normalize-observations")
R2D2 = (
    *("--algorithm", "r2d2", "--replay.sequence-length", 12, "--replay.burn-in", 4, "--replay.min-size", 20),
    *("--batch-size", 8, "--replay.samples-per-insert", 4),
)
HERE = ("--total-steps", 400, "--actor-kind", "sequential")


def train(run_dir: Path, *arguments: object) -> None:
    completed("train", *ENV, *SMALL, "--stop-return", 1e9, "--run-dir", run_dir, *arguments)


def train_in_processes(run: Path, *arguments: object) -> None:
    """Trains with actors in processes, again after a resume, and plays the policy."""
    train(run, "--total-steps", 1000, "--n-actors", 2, "--durable", *STACKED, *arguments)
    completed("train", "--resume", run, "--total-steps", 1500)
    completed("evaluate", run, "--n-episodes", 2)
    assert load_policy(run, name="last").act(np.zeros(2, np.float32)) in (0, 1)


def record(run: Path, path: Path, n_rollouts: int, n_steps: int) -> None:
    """Records rollouts, and checks what they bring of the steps before them."""
    lengths = ("--rollouts", n_rollouts, "--n-rollout-steps", n_steps)
    completed("record", "--policy", run, "--output", path, *lengths)
    first, second, *_ = (rollout.substeps["0"] for rollout in read_rollouts(path))
    n_envs = first.initial_state.shape[0]
    assert first.initial_state.shape == (n_envs, 16)
    assert not first.initial_state.any()
    assert second.initial_state.any()
    assert first.previous_observation[""].shape == (n_envs, K - 1, 2)
    np.testing.assert_array_equal(first.previous_observation[""], first.observation[""][0][:, None].repeat(K - 1, 1))
    assert (second.previous_observation[""][:, -1] != second.observation[""][0]).any()


def test_recording_with_states_fills_the_buffer_of_r2d2_if_every_sequence_has_one(tmp_path: Path):
    train_in_processes(tmp_path / "one", *R2D2)
    short, long = tmp_path / "short.rollouts", tmp_path / "long.rollouts"
    record(tmp_path / "one", short, 20, 8)
    record(tmp_path / "one", long, 20, 32)
    options = (*HERE, *STACKED, *R2D2, "--initial-data")
    train(tmp_path / "two", *options, short)
    said = refused("train", *ENV, *SMALL, *options, long, "--run-dir", tmp_path / "three", code=1)
    assert "substep '0' has no recurrent state; expected" in said
    assert "in rollouts of 16 steps" in said


LEARNS = {
    "ppo": (
        *("--recurrence", "gru", "--envs-per-actor", 16, "--batch-size", 16, "--n-rollout-steps", 12),
        *("--ppo.learning-rate", 0.005, "--ppo.minibatch-steps", 96),
    ),
    "r2d2": (
        *("--envs-per-actor", 8, "--batch-size", 32, "--n-rollout-steps", 6, "--replay.sequence-length", 6),
        *("--replay.burn-in", 0, "--replay.min-size", 64, "--replay.samples-per-insert", 8),
        *("--r2d2.learning-rate", 0.005, "--r2d2.n-step", 1),
    ),
}


# The same seed and actors in the learner's thread: each run is the same again.
@pytest.mark.parametrize("algorithm", LEARNS)
def test_policy_with_a_memory_learns_what_one_without_cannot(tmp_path: Path, algorithm: str):
    summary = tmp_path / "summary.json"
    completed(
        *("train", "--algorithm", algorithm, "--env-id", "tests.environments:RecallEnv", "--actor-kind", "sequential"),
        *("--n-actors", 1, "--hidden-sizes", 16, "--recurrent-size", 8, "--torch-threads", 1, *LEARNS[algorithm]),
        *("--eval-interval-steps", 960, "--eval-episodes", 20, "--stop-return", 0.9, "--total-steps", 30_000),
        *("--seed", 1, "--run-dir", tmp_path / "run", "--summary-json", summary),
    )
    assert json.loads(summary.read_text())["best_eval_mean_return"] >= 0.9
