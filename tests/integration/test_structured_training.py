"""Games of several agents with spaces of their own: trained in processes, and each agent evaluated.

Every algorithm learns of several substeps in unit/learner/algorithms/test_independent_learning.py.
"""

import re
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import completed, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow

SPEAKER = (
    *("--algorithm", "sac", "--env-id", "mpe2.simple_speaker_listener_v4:parallel_env", "--batch-size", 16),
    *("--replay.min-size", 100, "--replay.samples-per-insert", 32, "--total-steps", 400),
)
TICTACTOE = (
    *("--algorithm", "r2d2", "--env-id", "pettingzoo:make", "--agent-policies", "separate"),
    *("--env-kwargs", '{"env_type": "aec", "id": "classic/tictactoe-v3"}', "--batch-size", 8, "--n-rollout-steps", 4),
    *("--replay.sequence-length", 3, "--replay.burn-in", 1, "--replay.min-size", 50, "--recurrent-size", 8),
    *("--total-steps", 500),
)


@pytest.mark.parametrize(
    ("game", "agents"), [(SPEAKER, {"speaker", "listener"}), (TICTACTOE, {"player_1", "player_2"})], ids=["sac", "r2d2"]
)
def test_trains_and_evaluates_each_agent(game: tuple[object, ...], agents: set[str], tmp_path: Path):
    run = tmp_path / "run"
    options = ("--n-actors", 1, "--envs-per-actor", 4, "--log-interval-s", 0.1, "--run-dir", run)
    done = completed("train", *game, *options)
    assert int(re.search(r"^updates +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", "")) > 3
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert all(f"/{agent}/" in metrics for agent in agents), "what each of them learns is told"
    played = completed("evaluate", run, "--n-episodes", 3)
    assert set(re.findall(r"^ +(\w+)/0", played.stdout, re.MULTILINE)) == agents


def test_remote_actor_plays_a_structured_environment(tmp_path: Path):
    """The learner has never heard of the game: it takes the spaces of the first actor."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--algorithm", "impala", "--spaces-from", "first_actor", "--batch-size", 16, "--n-rollout-steps", 8)
    serving = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run", *options)
    acting = ("actor", "--learner-address", address, "--envs-per-actor", 4, *SPEAKER[2:4])
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
