"""`rollcast train`, `evaluate` and `status` as a user meets them."""

import json
import os
import re
import signal
import tempfile
from pathlib import Path

import psutil
import pytest
import yaml

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import Phase
from tests.processes import descendants, free_port, rollcast, running, wait_until

pytestmark = pytest.mark.slow

SUMMARY_KEYS = {
    "env_steps",
    "seconds",
    "env_steps_per_second",
    "updates",
    "mean_return",
    "solved",
    "policy_version",
    "policy_lag_mean",
    "policy_lag_max",
    "evaluations",
    "eval_mean_return",
    "best_eval_mean_return",
}


def is_training(address: str) -> bool:
    try:
        with LearnerClient(address, timeout_s=2.0) as client:
            status = client.status()
            return status.phase is Phase.TRAINING and status.updates > 0
    except RollcastError:
        return False


@pytest.fixture(scope="module")
def solved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the very command that the README begins with."""
    folder = tmp_path_factory.mktemp("solved")
    done = rollcast("train", "--run-dir", folder / "run", "--summary-json", folder / "summary.json", timeout_s=110)
    assert done.returncode == 0, done.stderr
    assert "solved" in done.stdout
    assert str(folder / "run") in done.stdout.replace("\n", "")
    return folder / "run"


def test_train_solves_cartpole(solved_run: Path):
    summary = json.loads((solved_run.parent / "summary.json").read_text())
    assert set(summary) == SUMMARY_KEYS
    assert summary["solved"] is True
    assert summary["mean_return"] >= 475
    assert summary["policy_version"] == summary["updates"] + 1


def test_run_directory_has_settings_metrics_and_policies(solved_run: Path):
    settings = yaml.safe_load((solved_run / "settings.yaml").read_text())
    assert settings["env_id"] == "CartPole-v1"
    assert settings["impala"]["discount"] == 0.997
    lines = [json.loads(line) for line in (solved_run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["env_steps"] > 0
    assert "impala/policy_loss" in lines[-1]
    assert list((solved_run / "tensorboard").glob("events*"))
    assert (solved_run / "policy_last.safetensors").is_file()
    assert (solved_run / "policy_best.safetensors").is_file()


def test_evaluate_plays_the_saved_policy(solved_run: Path, tmp_path: Path):
    figures = tmp_path / "evaluation.json"
    done = rollcast("evaluate", solved_run, "--n-episodes", 10, "--summary-json", figures)
    assert done.returncode == 0, done.stderr
    assert "95 % confidence" in done.stdout
    first = json.loads(figures.read_text())
    assert len(first["returns"]) == 10
    assert first["mean"] > 300, "far above the 22 of a policy that has learnt nothing"
    rollcast("evaluate", solved_run, "--n-episodes", 10, "--summary-json", figures)
    assert json.loads(figures.read_text()) == first, "fixed seeds, the same episodes"


@pytest.mark.parametrize(
    ("algorithm", "env_id", "min_size", "total_steps", "n_updates"),
    [
        # an update a step, and each takes as long as ten steps
        ("sac", "Pendulum-v1", 500, 850, 100),
        ("sac", "CartPole-v1", 500, 850, 100),
        ("dqn", "CartPole-v1", 500, 1500, 100),
        ("r2d2", "CartPole-v1", 16, 1500, 20),  # sequences, of 40 steps
    ],
)
def test_off_policy_algorithms_train_from_replay(
    algorithm: str, env_id: str, min_size: int, total_steps: int, n_updates: int, tmp_path: Path
):
    done = rollcast(
        *("train", "--algorithm", algorithm, "--env-id", env_id, "--total-steps", total_steps),
        *("--replay.min-size", min_size, "--run-dir", tmp_path / "run", "--summary-json", tmp_path / "summary.json"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^replay buffer: [\d,]+ (transitions|rollouts) of [\d.,]+ bytes, [\d.]+ MB in all; .* available$",
        done.stdout,
        re.M,
    )
    *_, metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics["replay/size"] >= min_size
    assert 0 < metrics["replay/samples_per_insert"] <= 256
    assert metrics["replay/min_diff"] <= metrics["replay/difference"] <= metrics["replay/max_diff"]
    assert ("replay/beta" in metrics) == (algorithm in ("dqn", "r2d2"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] >= total_steps
    assert summary["updates"] > n_updates
    settings = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert settings["replay"]["samples_per_insert"] > 1, "the algorithm's own default"
    played = rollcast("evaluate", tmp_path / "run", "--n-episodes", 2)
    assert played.returncode == 0, played.stderr


def test_ppo_learns_from_the_newest_policy_only_while_a_third_actor_waits_for_places(tmp_path: Path):
    done = rollcast(
        *("train", "--algorithm", "ppo", "--n-actors", 3, "--batch-size", 16, "--total-steps", 30000),
        *("--run-dir", tmp_path / "run", "--summary-json", tmp_path / "summary.json", "--log-interval-s", 1e-9),
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {record["queue/policy_lag_max"] for record in records} == {0}
    assert {record["queue/stale_trajectories"] for record in records} == {0}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["updates"] == summary["policy_version"] - 1 == 15, "of 2,048 steps each"
    assert summary["mean_return"] > 60, "far above the 22 of a policy that has learnt nothing"


@pytest.mark.parametrize(
    ("algorithm", "env_id", "min_size"),
    [("sac", "Pendulum-v1", 300), ("dqn", "CartPole-v1", 300), ("r2d2", "CartPole-v1", 16)],
)
def test_trains_from_buffer_on_the_learner_device(algorithm: str, env_id: str, min_size: int, tmp_path: Path):
    done = rollcast(
        *("train", "--algorithm", algorithm, "--env-id", env_id, "--device", "cpu", "--replay.device", "learner"),
        *("--total-steps", 600, "--replay.min-size", min_size, "--run-dir", tmp_path / "run"),
        *("--summary-json", tmp_path / "summary.json"),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] >= 600
    assert summary["updates"] > 0
    assert yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["replay"]["device"] == "learner"


def test_rejects_buffer_larger_than_memory_with_both_sizes(tmp_path: Path):
    options = ("--algorithm", "sac", "--env-id", "Pendulum-v1", "--replay.capacity", 10**13)
    done = rollcast("train", *options, "--run-dir", tmp_path / "run")
    assert done.returncode == 2
    assert "replay buffer: 10,000,000,000,000 transitions of " in done.stdout
    assert re.search(
        r"a replay buffer of 10,000,000,000,000 transitions of [\d.]+ bytes takes [\d.]+ TB, and [\d.]+ [GM]B are "
        r"available; expected .*; lower the buffer's capacity, set its capacity_bytes",
        done.stderr,
    )
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_status_shows_rollouts_held_by_the_limiter(tmp_path: Path):
    port = free_port()
    arguments = ("--algorithm", "dqn", "--run-dir", tmp_path / "run", "--address", f"localhost:{port}")
    with running("learner", "train", *arguments) as process, LearnerClient(f"localhost:{port}") as client:
        wait_until(lambda: is_training(f"localhost:{port}"), "training", 40)
        held_back: list[ReplayWaiting] = []

        def is_held_back() -> bool:
            held_back.extend(wait for wait in client.status().replay.waiting if wait.who == "the actors")
            return bool(held_back)

        wait_until(is_held_back, "the actors, who are faster, to be held back", 40)
        assert held_back[0].reason.startswith("an insertion of ")
        status = client.status()
        assert status.replay.size >= 1000
        assert status.replay.sampled > 0
        shown = rollcast("status", "--address", f"localhost:{port}", "--json-output")
        assert json.loads(shown.stdout)["replay"]["capacity"] == 100_000
        client.stop()
        assert process.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_processes_and_saves_the_policy(number: signal.Signals, tmp_path: Path):
    port = free_port()
    arguments = ("--run-dir", tmp_path / "run", "--address", f"localhost:{port}", "--stop-return", 1e9)
    # of its own, where no other run leaves anything, and short: names of sockets have 107 characters
    with (
        tempfile.TemporaryDirectory(prefix="rc-", ignore_cleanup_errors=True) as temporary,
        running("learner", "train", *arguments, TMPDIR=temporary) as process,
    ):
        wait_until(lambda: is_training(f"localhost:{port}"), "training", 40)
        assert list(Path(temporary).glob("rollcast-*")), "the socket's folder"
        children = descendants(process)
        assert len(children) >= 2
        process.send_signal(number)
        assert process.wait(60) == (130 if number is signal.SIGINT else 0), process.stdout.read()
        wait_until(lambda: not any(child.is_running() for child in children), f"{children} to be gone", 5.0)
        assert not list(Path(temporary).glob("rollcast-*"))
    assert (tmp_path / "run" / "policy_last.safetensors").is_file()


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "appo"])
def test_training_continues_when_an_actor_is_killed(algorithm: str, tmp_path: Path):
    port = free_port()
    arguments = ("--run-dir", tmp_path / "run", "--address", f"localhost:{port}", "--stop-return", 1e9)
    arguments += ("--algorithm", algorithm)
    with running("learner", "train", *arguments) as process, LearnerClient(f"localhost:{port}") as client:
        wait_until(lambda: is_training(f"localhost:{port}") and client.status().actors_alive == 2, "two actors", 40)
        victim = next(
            child for child in descendants(process) if "local-0" in _thread_names(child) or _holds_socket(child)
        )
        updates = client.status().updates
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(
            lambda: client.status().actors_alive == 2 and sum(info.incarnation for info in client.actors()) == 3,
            "the actor to be back",
        )
        wait_until(lambda: client.status().updates > updates, "further updates")
        client.stop()
        assert process.wait(60) == 0


def _thread_names(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def _holds_socket(process: psutil.Process) -> bool:
    """Returns True if a process talks to the learner's socket: an actor, not the forkserver."""
    return process.num_threads() > 4


def test_api_pauses_resumes_and_stops_a_run(tmp_path: Path):
    port = free_port()
    arguments = ("--run-dir", tmp_path / "run", "--address", f"localhost:{port}", "--stop-return", 1e9)
    with running("learner", "train", *arguments) as process, LearnerClient(f"localhost:{port}") as client:
        wait_until(lambda: is_training(f"localhost:{port}"), "training", 40)
        client.pause()
        paused = client.status()
        assert paused.phase is Phase.PAUSED
        assert client.status().updates == paused.updates
        path, version = client.save_checkpoint()
        assert Path(path).is_dir()
        assert version == paused.policy_version
        client.resume()
        wait_until(lambda: client.status().updates > paused.updates, "updates after the pause")
        shown = rollcast("status", "--address", f"localhost:{port}", "--json-output", "--actors")
        assert shown.returncode == 0, shown.stderr
        assert len(json.loads(shown.stdout)["actors"]) == 2
        client.stop()
        assert process.wait(60) == 0


def test_sequential_training_gives_the_same_bits(tmp_path: Path):
    policies = []
    for name in ("a", "b"):
        done = rollcast(
            "train", "--actor-kind", "sequential", "--total-steps", 8000, "--seed", 3, "--run-dir", tmp_path / name
        )
        assert done.returncode == 0, done.stderr
        policies.append((tmp_path / name / "policy_last.safetensors").read_bytes())
    assert policies[0] == policies[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--env-id", "CartPol-v1"], "CartPole-v1"),
        (["train", "--env-id", "no.such.module:make"], "no.such.module"),
        (["train", "--n-actors", "0"], "--n-actors: '0' is not valid"),
        (["train", "--hidden-sizes", "64,0"], "hidden"),
        (["train", "--device", "tpu"], "--device: 'tpu'"),
        (["train", "--impala.discount", "1.5"], "--impala.discount: '1.5'"),
        (["train", "--config", "missing.yaml"], "missing.yaml"),
        (["evaluate", "nowhere"], "not a run directory"),
        (["learner", "--address", "nonsense"], "nonsense"),
        (["fly"], "expected one of train, learner"),
    ],
)
def test_error_of_wrong_setting_has_name_value_and_advice(arguments: list[str], message: str, tmp_path: Path):
    done = rollcast(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_come_from_the_command_line_then_the_environment_then_the_file(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("seed: 1\nn_actors: 3\ntotal_steps: 1000\nactor_kind: sequential\n")
    done = rollcast(
        "train",
        "--config",
        config,
        "--seed",
        4,
        "--run-dir",
        tmp_path / "run",
        ROLLCAST_SEED="2",
        ROLLCAST_N_ACTORS="1",
    )
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert (settings["seed"], settings["n_actors"], settings["total_steps"]) == (4, 1, 1000)


def test_second_learner_on_the_same_port_fails_and_the_first_continues(tmp_path: Path):
    port = free_port()
    with running("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", tmp_path / "first"):
        with LearnerClient(f"127.0.0.1:{port}", timeout_s=2.0) as client:
            wait_until(lambda: _answers(client), "the first learner", 40)
            second = rollcast("learner", "--address", f"127.0.0.1:{port}", "--run-dir", tmp_path / "second")
            assert second.returncode == 1
            assert f"127.0.0.1:{port}" in second.stderr
            assert "in use" in second.stderr
            assert client.status().phase is Phase.TRAINING


def _answers(client: LearnerClient) -> bool:
    try:
        return client.status().phase is Phase.TRAINING
    except RollcastError:
        return False


@pytest.mark.parametrize("command", [["status", "--timeout-s", "1"], ["actor", "--connect-timeout-s", "1"]])
def test_reports_unreachable_learner(command: list[str]):
    option = "--address" if command[0] == "status" else "--learner-address"
    done = rollcast(*command, option, f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "LearnerUnreachableError" in done.stderr
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_shows_wait_for_actors(tmp_path: Path):
    port = free_port()
    with running("learner", "learner", "--address", f"127.0.0.1:{port}", "--run-dir", tmp_path / "run"):
        with LearnerClient(f"127.0.0.1:{port}", timeout_s=2.0) as client:
            wait_until(lambda: _answers(client) and client.status().waiting_for, "a reason", 40)
            wait_until(lambda: "an actor to join at" in client.status().waiting_for, "the reason in words")
            assert client.status().waiting_s > 0


@pytest.mark.parametrize("command", ["train", "learner", "actor", "status", "evaluate", "record"])
def test_help_explains_every_setting(command: str):
    done = rollcast(command, "--help")
    assert done.returncode == 0
    assert "--config FILE" in " ".join(done.stdout.split())
    assert done.stdout.count("(default") + done.stdout.count("required") >= 4
