"""Atari games with --atari, through every command that makes environments."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rollcast.actor import load_policy
from rollcast.learner.commands.train import train
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.rollouts.recording import read_rollouts
from tests.processes import completed, ended, free_port, refused, running, status_of, wait_until

SHORT = json.dumps({"max_num_frames_per_episode": 240})
GAME = ("--env-id", "ALE/Breakout-v5", "--atari", "--env-kwargs", SHORT)
SMALL = (
    "--algorithm",
    "impala",
    "--n-rollout-steps",
    8,
    "--envs-per-actor",
    2,
    "--batch-size",
    2,
    "--stop-return",
    1e9,
)


@pytest.mark.slow
def test_run_is_evaluated_resumed_played_and_recorded(tmp_path: Path):
    run, path, figures = tmp_path / "run", tmp_path / "played.rollouts", tmp_path / "figures.json"
    for arguments in (
        ("train", *GAME, *SMALL, "--run-dir", run, "--total-steps", 64, "--n-actors", 1, "--actor-kind", "sequential"),
        ("train", "--resume", run, "--total-steps", 96),
        ("evaluate", run, "--n-episodes", 1, "--summary-json", figures),
        ("record", "--policy", run, "--output", path, "--rollouts", 1, "--n-rollout-steps", 8, "--envs-per-actor", 2),
    ):
        completed(*arguments)
    settings = (run / "settings.yaml").read_text()
    assert "frame_stack: 4\n" in settings
    # a whole game is what the no-ops leave of 240 frames
    assert 52 <= json.loads(figures.read_text())["lengths"][0] <= 60
    (rollout,) = read_rollouts(path)
    columns = rollout.substeps["0"]
    assert columns.observation[""].shape == (8, 2, 84, 84)
    assert columns.previous_observation[""].shape == (2, 3, 84, 84)
    assert load_policy(run, name="last").act(np.zeros((84, 84), np.uint8)) in range(4)
    said = refused("evaluate", run, "--env-id", "CartPole-v1", "--atari")
    assert "env_id is 'CartPole-v1' with atari, but that is not an Atari game" in said
    # without the option, the run's preprocessing is for games only, and what does not fit is told by the spaces
    said = refused("evaluate", run, "--env-id", "CartPole-v1", code=1)
    assert "the saved policy has Box(0, 255, (84, 84), uint8), the environment to play in has Box(" in said


@pytest.mark.slow
def test_actor_and_evaluator_elsewhere_play_the_learners_game(tmp_path: Path):
    address, run = f"127.0.0.1:{free_port()}", tmp_path / "run"
    remote = ("actor", "--learner-address", address, *GAME)
    evaluates = ("--eval-interval-s", 0.2, "--eval-episodes", 1, "--total-steps", 10**9)
    with (
        running("learner", "learner", *GAME, *SMALL, *evaluates, "--address", address, "--run-dir", run) as learner,
        running(*remote) as actor,
        running(*remote, "--role", "evaluate") as judge,
    ):
        wait_until(lambda: (told := status_of(address).evaluation) and told.evaluations, "an evaluation")
        with LearnerClient(address) as client:
            client.stop()
        assert (ended(learner), ended(actor), ended(judge)) == (0, 0, 0)
    assert "eval/mean_return" in (run / "metrics.jsonl").read_text()


def test_raw_frames_are_hinted_at(tmp_path: Path):
    raw = ("--env-id", "ale_py:ALE/Pong-v5", "--vectorization", "sync", "--actor-kind", "sequential", "--n-actors", 1)
    given = map(str, (*raw, *SMALL, "--network", "mlp", "--total-steps", 16, "--run-dir", tmp_path / "run"))
    printed = io.StringIO()
    assert train(TrainSettings.from_command_line("rollcast train", list(given)), Console(file=printed, width=200)) == 0
    assert "observations are raw frames of Atari, 210 by 160; with --atari they are 84 by 84" in printed.getvalue()
