"""Games of several agents through the whole system: every algorithm, local actors and those from elsewhere."""

import re
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from tests.processes import free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow

# Two kinds of agents with spaces of their own.
SPEAKER = ("--env-id", "mpe2.simple_speaker_listener_v4:parallel_env")
TICTACTOE = (
    *("--env-id", "pettingzoo:make"),
    *("--env-kwargs", '{"env_type": "aec", "id": "classic/tictactoe-v3"}'),
)
SMALL = {
    "impala": ("--n-rollout-steps", 25, "--batch-size", 8, "--total-steps", 4000),
    "dqn": ("--batch-size", 32, "--replay.min-size", 200, "--total-steps", 800),
    "r2d2": (
        *("--batch-size", 8, "--n-rollout-steps", 4, "--replay.sequence-length", 3, "--replay.burn-in", 1),
        *("--replay.min-size", 50, "--recurrent-size", 8, "--total-steps", 500),
    ),
    "sac": ("--batch-size", 32, "--replay.min-size", 200, "--total-steps", 600),
}


@pytest.mark.parametrize(
    ("algorithm", "game", "agents"),
    [
        ("impala", SPEAKER, {"speaker/0", "listener/0"}),
        ("sac", SPEAKER, {"speaker/0", "listener/0"}),
        ("dqn", (*TICTACTOE, "--agent-policies", "separate"), {"player_1/0", "player_2/0"}),
        ("r2d2", (*TICTACTOE, "--agent-policies", "separate"), {"player_1/0", "player_2/0"}),
        ("impala", TICTACTOE, {"player/0", "player/1"}),
    ],
)
def test_trains_and_evaluates_each_agent(algorithm: str, game: tuple[str, ...], agents: set[str], tmp_path: Path):
    run = tmp_path / "run"
    options = (
        "--algorithm",
        algorithm,
        *game,
        *SMALL[algorithm],
        "--n-actors",
        1,
        "--envs-per-actor",
        4,
        "--log-interval-s",
        0.1,
    )
    done = rollcast("train", *options, "--run-dir", run, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"^updates +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", "")) > 3
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    keys = {agent.split("/")[0] for agent in agents}
    assert all(f"/{key}/" in metrics for key in keys) or len(keys) == 1, "what each of them learns is told"
    played = rollcast("evaluate", run, "--n-episodes", 3)
    assert played.returncode == 0, played.stderr
    assert set(re.findall(r"^ +(\w+/\d)", played.stdout, re.MULTILINE)) == agents


def test_remote_actor_plays_a_structured_environment(tmp_path: Path):
    """The learner has never heard of the game: it takes the spaces of the first actor."""
    port = free_port()
    options = ("--algorithm", "impala", "--spaces-from", "first_actor", "--batch-size", 16, "--n-rollout-steps", 8)
    serving = ("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", tmp_path / "run", *options)
    acting = ("actor", "--learner-address", f"127.0.0.1:{port}", "--envs-per-actor", 4, *SPEAKER)
    with (
        running(*serving, "--env-id", "not.installed:here"),
        running(*acting, "--actor-id", "one"),
        running(*acting, "--actor-id", "two"),
        LearnerClient(f"127.0.0.1:{port}") as client,
    ):
        wait_until(lambda: _updates(client) > 10, "updates", 60)
        wait_until(lambda: _who_plays(client) == {"one", "two"}, "rollouts of both actors", 60)


def _who_plays(client: LearnerClient) -> set[str]:
    return {info.actor_id for info in client.actors() if info.rollouts}


def _updates(client: LearnerClient) -> int:
    try:
        return client.status().updates
    except RollcastError:  # it is not there yet
        return 0
