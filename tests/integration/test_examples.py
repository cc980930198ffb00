"""Every example runs as it is, for real and briefly."""

import json
import re
from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from tests.processes import (
    DEADLINE_S,
    ROOT,
    completed,
    ended,
    free_port,
    running,
    script,
    status_of,
    wait_until,
)

# They train until something is learnt, which takes a minute of a free machine.
pytestmark = pytest.mark.slow

RUN_HERE = {
    *("batched_simulator.py", "client.py", "library.py", "own_algorithm.py", "own_environment.py", "own_network.py"),
    *("cooperative_game.py", "remote_actors.py", "turn_taking_game.py", "warehouse.py"),
}
# in test_other_languages.py, in tests/e2e, in test_replay_service.py
RUN_ELSEWHERE = {"act.py", "containers.py", "replay_client.py"}
# Of an update, one pass over its batch in place of ten.
QUICK_PPO = ("--ppo.n-epochs", 1)
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}


def run_example(name: str, *arguments: object, cwd: Path) -> str:
    """Runs an example from anywhere and returns what it printed."""
    done = script(ROOT / "examples" / name, *arguments, cwd=cwd, within_s=2 * DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here():
    assert EXAMPLES == RUN_HERE | RUN_ELSEWHERE


def test_own_environment_trains_with_its_keyword_arguments(tmp_path: Path):
    # a low board: episodes of 4 steps are learnt in a few seconds
    quick = ("--ppo.learning-rate", 0.002, "--ppo.n-epochs", 4, "--ppo.minibatch-steps", 256)
    arguments = ("--env-kwargs", '{"rows": 5}', "--run-dir", tmp_path / "run", *quick)
    assert "(solved: 0.95 over 100 episodes)" in run_example("own_environment.py", *arguments, cwd=tmp_path)
    played = completed("evaluate", tmp_path / "run", "--n-episodes", 10)
    assert "on examples.own_environment:make" in played.stdout
    assert re.search(r"mean length +4\.0 steps", played.stdout)


def test_a_simulator_of_tensors_is_learnt_by_an_actor_process_and_evaluated(tmp_path: Path):
    run = tmp_path / "run"
    simulator = ("--env-id", "examples.batched_simulator:BatchedCartPole-v0", "--envs-per-actor", 64, "--n-actors", 1)
    ends = ("--algorithm", "impala", "--stop-return", 120, "--total-steps", 2_000_000, "--run-dir", run)
    assert "(solved: 120 over 100 episodes)" in completed("train", *simulator, *ends).stdout
    played = completed("evaluate", run, "--n-episodes", 5).stdout
    # random actions hold the pole for 22 steps
    assert float(re.search(r"mean return +([0-9.]+)", played)[1]) > 100


def test_own_network_trains(tmp_path: Path):
    """A run like it is evaluated in test_docs.py."""
    arguments = ("--total-steps", 2_000, *QUICK_PPO, "--run-dir", tmp_path / "run")
    printed = run_example("own_network.py", *arguments, cwd=tmp_path)
    assert re.search(r"^updates +[1-9]\d*", printed, re.MULTILINE)


def test_own_algorithm_learns(tmp_path: Path):
    """A random policy's episodes have 22 steps on average, and no mean of 100 of them has 45 by chance."""
    run = tmp_path / "run"
    options = ("--actor-kind", "sequential", "--n-actors", 1, "--stop-return", 45, "--total-steps", 300_000)
    arguments = ("--algorithm-kwargs", '{"learning_rate": 0.003}', "--log-interval-s", 0.2, "--run-dir", run, *options)
    printed = run_example("own_algorithm.py", *arguments, cwd=tmp_path)
    assert "(solved: 45 over 100 episodes)" in printed
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # in the last of them, no episode may have ended
    assert {"ActorCritic/policy_loss", "ActorCritic/entropy", "episode_return/mean"} <= set().union(*records)
    played = completed("evaluate", run, "--n-episodes", 20)
    assert float(re.search(r"mean return +([\d.]+)", played.stdout)[1]) > 40
    completed("record", "--policy", run, "--rollouts", 2, "--output", tmp_path / "played.rollouts")


def test_warehouse_example_shows_its_own_metrics(tmp_path: Path):
    arguments = ("--total-steps", 20_000, *QUICK_PPO, "--log-interval-s", 0.2, "--run-dir", tmp_path / "run")
    printed = run_example("warehouse.py", *arguments, cwd=tmp_path)
    assert re.search(
        r"^parcel_delivered/mean_minutes\[far\] [\d.]+  parcel_delivered/mean_minutes\[middle\]", printed, re.M
    )
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = next(record for record in reversed(records) if "parcel_delivered/mean_minutes[near]" in record)
    for zone in ("near", "middle", "far"):
        assert 0 < last[f"parcel_delivered/mean_minutes[{zone}]"] <= last[f"parcel_delivered/worst_minutes[{zone}]"]
        assert last[f"parcel_delivered/parcels_so_far[{zone}]"] > 300
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"parcel_delivered/mean_minutes[near]" in events.read_bytes()


def test_library_example_trains(tmp_path: Path):
    # in which a machine with other work, too, starts its actors and ends some episodes
    printed = run_example("library.py", 10, cwd=tmp_path)
    assert re.fullmatch(r"mean return [\d.]+", printed.splitlines()[-1])
    assert float(printed.split()[-1]) > 0


def test_remote_actors_example_learns_from_who_connects_and_tells_them_of_the_end(tmp_path: Path):
    address = f"localhost:{free_port()}"
    with running("actor", "--learner-address", address, "--env-id", "CartPole-v1") as actor:
        printed = run_example("remote_actors.py", address, 20, cwd=tmp_path)
        assert ended(actor) == 0
    assert printed.splitlines() == [f"actors may connect to {address}", "20 updates, with 1 actors at the end"]


def test_cooperative_game_trains(tmp_path: Path):
    """Agents learn such games in unit/learner/algorithms/test_independent_learning.py."""
    arguments = ("--total-steps", 2_000, "--run-dir", tmp_path / "run")
    printed = run_example("cooperative_game.py", *arguments, cwd=tmp_path)
    assert re.search(r"^updates +[1-9]\d*", printed, re.MULTILINE)
    played = completed("evaluate", tmp_path / "run", "--n-episodes", 5)
    assert len(re.findall(r"agent_[01] +(-[\d.]+)", played.stdout)) == 2


def test_turn_taking_game_trains(tmp_path: Path):
    printed = run_example("turn_taking_game.py", 4_000, cwd=tmp_path)
    won, drawn, lost = map(int, re.findall(r"\d+", printed)[:3])
    assert won + drawn + lost == 200


def test_client_example_reads_status_and_policy(tmp_path: Path):
    address = f"localhost:{free_port()}"
    arguments = ("--address", address, "--stop-return", 1e9, "--run-dir", tmp_path / "run")
    with running("learner", "train", *arguments) as process:
        wait_until(lambda: (now := status_of(address)).actors_alive == 2 and now.mean_return is not None, "two actors")
        printed = run_example("client.py", address, cwd=tmp_path)
        with LearnerClient(address) as client:
            client.stop()
        assert ended(process) == 0
    first, *actors, last = printed.splitlines()
    assert re.fullmatch(r"training: [\d,]+ steps, mean return [\d.]+", first)
    assert {line.split()[0] for line in actors} == {"local-0", "local-1"}
    assert re.fullmatch(r"policy \d+ would do \[[01], [01], [01]\]", last)
