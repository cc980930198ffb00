"""Games of several agents through the whole system: each kind of algorithm and of game, and actors from elsewhere.

Every algorithm learns of several substeps in unit/learner/algorithms/test_independent_learning.py.
"""

import re
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import completed, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow

# Two kinds of agents with spaces of their own.
SPEAKER = ("--env-id", "mpe2.simple_speaker_listener_v4:parallel_env")
TICTACTOE = (
    *("--env-id", "pettingzoo:make"),
    *("--env-kwargs", '{"env_type": "aec", "id": "classic/tictactoe-v3"}'),
)
SMALL = {
    "impala": ("--n-rollout-steps", 8, "--batch-size", 8, "--total-steps", 600),
    "r2d2": (
        *("--batch-size", 8, "--n-rollout-steps", 4, "--replay.sequence-length", 3, "--replay.burn-in", 1),
        *("--replay.min-size", 50, "--recurrent-size", 8, "--total-steps", 500),
    ),
    "sac": ("--batch-size", 16, "--replay.min-size", 100, "--replay.samples-per-insert", 32, "--total-steps", 400),
}


@pytest.mark.parametrize(
    ("algorithm", "game", "agents"),
    [
        ("sac", SPEAKER, {"speaker/0", "listener/0"}),
        ("r2d2", (*TICTACTOE, "--agent-policies", "separate"), {"player_1/0", "player_2/0"}),
        ("impala", TICTACTOE, {"player/0", "player/1"}),
    ],
)
def test_trains_and_evaluates_each_agent(algorithm: str, game: tuple[str, ...], agents: set[str], tmp_path: Path):
    run = tmp_path / "run"
    options = ("--algorithm", algorithm, *game, *SMALL[algorithm], "--n-actors", 1, "--envs-per-actor", 4)
    done = completed("train", *options, "--log-interval-s", 0.1, "--run-dir", run)
    assert int(re.search(r"^updates +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", "")) > 3
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    keys = {agent.split("/")[0] for agent in agents}
    assert all(f"/{key}/" in metrics for key in keys) or len(keys) == 1, "what each of them learns is told"
    played = completed("evaluate", run, "--n-episodes", 3)
    assert set(re.findall(r"^ +(\w+/\d)", played.stdout, re.MULTILINE)) == agents


def test_remote_actor_plays_a_structured_environment(tmp_path: Path):
    """The learner has never heard of the game: it takes the spaces of the first actor."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--algorithm", "impala", "--spaces-from", "first_actor", "--batch-size", 16, "--n-rollout-steps", 8)
    serving = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run", *options)
    acting = ("actor", "--learner-address", address, "--envs-per-actor", 4, *SPEAKER)
    with (
        running(*serving, "--env-id", "not.installed:here"),
        running(*acting, "--actor-id", "one"),
        running(*acting, "--actor-id", "two"),
        LearnerClient(address) as client,
    ):
        wait_until(lambda: status_of(client).updates > 10, "updates")
        wait_until(
            lambda: {info.actor_id for info in client.actors() if info.rollouts} == {"one", "two"}, "both actors"
        )
