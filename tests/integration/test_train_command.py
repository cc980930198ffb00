"""`rollcast train`, `evaluate` and `status` as a user meets them."""

import io
import json
import re
import socket
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from rollcast.learner.commands.train import train
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.client.client import LearnerClient
from tests.processes import (
    completed,
    descendants,
    ended,
    environment,
    free_port,
    refused,
    rollcast,
    running,
    status_of,
    wait_until,
    zygote,
)

pytestmark = pytest.mark.slow

# An update takes milliseconds; one of PPO's defaults takes a second, and many with threads on a busy machine.
QUICK = ("--algorithm", "impala", "--n-rollout-steps", 16, "--envs-per-actor", 4, "--batch-size", 4)
SEQUENTIAL = (*QUICK, "--actor-kind", "sequential", "--n-actors", 1)


def trained_here(*options: object) -> str:
    """Trains in this process, with actors in it, and returns what was printed."""
    printed = io.StringIO()
    settings = TrainSettings.from_command_line("rollcast train", [str(option) for option in options])
    assert train(settings, Console(file=printed)) == 0
    return printed.getvalue()


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


@pytest.fixture(scope="module")
def solved_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the very command that the README begins with, as far as to show that it learns.

    It is trained to its end in tests/e2e/test_compose.py.
    """
    folder = tmp_path_factory.mktemp("solved")
    shown = ("--summary-json", folder / "summary.json", "--stop-return", 60)
    done = completed("train", "--run-dir", folder / "run", *shown)
    assert "solved" in done.stdout
    assert str(folder / "run") in done.stdout.replace("\n", "")
    return folder / "run"


def test_train_solves_cartpole(solved_run: Path):
    summary = json.loads((solved_run.parent / "summary.json").read_text())
    assert set(summary) == SUMMARY_KEYS
    assert summary["solved"] is True
    assert summary["mean_return"] >= 60
    assert summary["policy_version"] == summary["updates"] + 1


def test_run_directory_has_settings_metrics_and_policies(solved_run: Path):
    settings = yaml.safe_load((solved_run / "settings.yaml").read_text())
    assert settings["env_id"] == "CartPole-v1"
    assert (settings["algorithm"], settings["n_rollout_steps"], settings["ppo"]["discount"]) == ("ppo", 128, 0.99)
    lines = [json.loads(line) for line in (solved_run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((solved_run.parent / "summary.json").read_text())
    assert lines[-1]["env_steps"] == summary["env_steps"], "the end is recorded"
    assert lines[-1]["train/mean_return"] == pytest.approx(summary["mean_return"])
    assert "ppo/policy_loss" in lines[-1]
    assert list((solved_run / "tensorboard").glob("events*"))
    assert (solved_run / "policy_last.safetensors").is_file()
    assert (solved_run / "policy_best.safetensors").is_file()


def test_evaluate_plays_the_saved_policy(solved_run: Path, tmp_path: Path):
    figures = tmp_path / "evaluation.json"
    done = completed("evaluate", solved_run, "--n-episodes", 10, "--summary-json", figures)
    assert "95 % confidence" in done.stdout
    first = json.loads(figures.read_text())
    assert len(first["returns"]) == 10
    assert first["mean"] > 40, "far above the 22 of a policy that has learnt nothing"
    rollcast("evaluate", solved_run, "--n-episodes", 10, "--summary-json", figures)
    assert json.loads(figures.read_text()) == first, "fixed seeds, the same episodes"


def test_an_off_policy_algorithm_trains_from_replay(tmp_path: Path):
    """One of those with priorities; tests/matrix trains with all."""
    run = tmp_path / "run"
    given = ("--algorithm", "r2d2", "--env-id", "CartPole-v1", "--replay.min-size", 16, "--replay.device", "learner")
    given += ("--device", "cpu", "--total-steps", 600, "--hidden-sizes", 16)
    printed = completed("train", *given, "--run-dir", run, "--summary-json", tmp_path / "summary.json").stdout
    told = r"^replay buffer: [\d,]+ rollouts of [\d.,]+ bytes, [\d.]+ MB in all; .* available$"
    assert re.search(told, printed, re.MULTILINE)
    *_, metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert metrics["replay/size"] >= 16
    assert 0 < metrics["replay/samples_per_insert"] <= 256
    assert metrics["replay/min_diff"] <= metrics["replay/difference"] <= metrics["replay/max_diff"]
    assert "replay/beta" in metrics
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] >= 600
    assert summary["updates"] > 0
    replay = yaml.safe_load((run / "settings.yaml").read_text())["replay"]
    assert replay["samples_per_insert"] > 1, "the algorithm's own default"
    assert replay["device"] == "learner"
    completed("evaluate", run, "--n-episodes", 2)


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize(
    ("options", "openmp", "said"),
    [
        pytest.param((), "2", "2 threads of torch: OMP_NUM_THREADS", id="OpenMP's number"),
        pytest.param(("--torch-threads", 3), "2", "3 threads of torch: --torch", id="the option"),
        pytest.param(("--deterministic",), "2", "", id="deterministic"),
        pytest.param((), "", "", id="nothing"),
    ],
)
def test_a_run_that_computes_with_several_threads_says_so_and_why(
    options: tuple[object, ...], openmp: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    printed = trained_here(*SEQUENTIAL, "--total-steps", 10, "--run-dir", tmp_path / "run", *options)
    assert f"updates compute with {said}" in printed if said else "threads of torch" not in printed


def test_rejects_buffer_larger_than_memory_with_both_sizes(refused_here, tmp_path: Path):
    options = ("--algorithm", "sac", "--env-id", "Pendulum-v1", "--replay.capacity", 10**13)
    printed, said = refused_here("train", *options, "--run-dir", tmp_path / "run")
    assert "replay buffer: 10,000,000,000,000 transitions of " in printed
    assert re.search(
        r"a replay buffer of 10,000,000,000,000 transitions of [\d.]+ bytes takes [\d.]+ TB, and [\d.]+ [GM]B are "
        r"available; expected .*; lower the buffer's capacity, set --replay.capacity-bytes",
        said,
    )
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_training_in_rounds_continues_when_an_actor_is_killed(tmp_path: Path):
    """Others go on without it anyway: tests/integration/test_subproc_actors.py."""
    address = f"localhost:{free_port()}"
    arguments = ("--algorithm", "ppo", "--run-dir", tmp_path / "run", "--address", address, "--stop-return", 1e9)
    with running("learner", "train", *arguments) as process, LearnerClient(address) as client:
        wait_until(lambda: (now := status_of(client)).updates and now.actors_alive == 2, "two actors")
        # an actor has threads of gRPC's; the forkserver has none
        victim = next(child for child in descendants(process) if child.num_threads() > 4)
        updates = client.status().updates
        victim.kill()
        wait_until(
            lambda: client.status().actors_alive == 2 and sum(info.incarnation for info in client.actors()) == 3,
            "the actor to be back",
        )
        wait_until(lambda: client.status().updates > updates, "further updates")
        client.stop()
        assert ended(process) == 0
        # always the newest policy's, also in the round of the dead actor
        assert "lag of the run: mean 0.00, max 0\n" in process.stdout.read()


def test_sequential_training_gives_the_same_bits(tmp_path: Path):
    options = (*SEQUENTIAL, "--total-steps", 1000, "--seed", 3, "--run-dir")
    trained_here(*options, tmp_path / "here")
    completed("train", *options, tmp_path / "there")
    here, there = ((tmp_path / name / "policy_last.safetensors").read_bytes() for name in ("here", "there"))
    assert here == there


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--env-id", "CartPol-v1"], "CartPole-v1"),
        (["train", "--env-id", "no.such.module:make"], "no.such.module"),
        (["train", "--n-actors", "0"], "--n-actors: '0' is not valid"),
        (["train", "--device", "tpu"], "--device: 'tpu'"),
        (["evaluate", "nowhere"], "not a run directory"),
        (["learner", "--address", "nonsense"], "nonsense"),
    ],
)
def test_error_of_wrong_setting_has_name_value_and_advice(arguments: list[str], message: str, refused_here):
    assert message in refused_here(*arguments)[1]


@pytest.mark.parametrize("command", ["train", "learner"])
def test_a_place_that_is_taken_is_said_before_anything_else(command: str, refused_here, tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "settings.yaml").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        for options, code, message in (
            (("--address", in_use, "--run-dir", tmp_path / "new"), 1, f"the address {in_use!r} is in use"),
            (("--address", "127.0.0.1:0", "--run-dir", tmp_path / "old"), 2, "old is not empty; expected a new one"),
        ):
            printed, said = refused_here(command, *options, code=code)
            assert printed == ""
            assert message in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", [["status", "--timeout-s", "1"], ["actor", "--connect-timeout-s", "1"]])
def test_reports_unreachable_learner(command: list[str]):
    option = "--address" if command[0] == "status" else "--learner-address"
    said = refused(*command, option, f"127.0.0.1:{free_port()}", code=1)
    assert "LearnerUnreachableError" in said
    assert "127.0.0.1" in said


def test_training_goes_on_when_nothing_can_be_printed(tmp_path: Path):
    """The disk is full; test_printing.py has a reader that ends."""
    summary = tmp_path / "summary.json"
    options = map(str, (*SEQUENTIAL, "--total-steps", 2000, "--summary-json", summary, "--run-dir", tmp_path / "run"))
    with (tmp_path / "said").open("w+") as said, Path("/dev/full").open("wb") as full:
        process = zygote().fork(
            "rollcast.learner",
            ["train", *options],
            cwd=tmp_path,
            environment=environment(),
            outputs=(full.fileno(), said.fileno()),
        )
        assert ended(process) == 0, said.read()
        said.seek(0)
        (warning,) = [line for line in said if "lost" in line]
    assert "the output of this command is lost from now on, and the command continues" in warning
    assert json.loads(summary.read_text())["env_steps"] >= 2000
    assert (tmp_path / "run" / "policy_last.safetensors").is_file()


def test_a_temporary_folder_too_long_for_sockets_is_borne(tmp_path: Path):
    long, options = tmp_path / ("x" * 100), ("--env-id", "CartPole-v1", "--vectorization", "subprocess")
    long.mkdir()
    page = ("--dashboard", "--dashboard-address", "127.0.0.1:0")
    training = (*QUICK, "--n-actors", 1, "--total-steps", 500, "--run-dir", tmp_path / "run", *page)
    completed("train", *options, *training, TMPDIR=str(long))
    # which has no actors, but processes of environments
    completed("record", *options, "--rollouts", 1, "--output", tmp_path / "played", TMPDIR=str(long))


def test_ingest_processes_bear_a_temporary_folder_too_long_for_sockets(tmp_path: Path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    options = ("--address", "127.0.0.1:0", "--ingest-processes", 1, "--collect-timeout-s", 0.5)
    told = refused("learner", *options, "--run-dir", tmp_path / "run", code=1, TMPDIR=str(long))
    assert "s: the learner waits for an actor to join" in told


@pytest.mark.parametrize("failing", ['{"fail_in_reset": true}', '{"fail_in_step": 1}'], ids=["reset", "step"])
def test_environments_that_all_fail_at_once_end_the_run_at_once(failing: str, tmp_path: Path):
    env = ("--env-id", "tests.unit.actor.sample_environments:FailingEnv", "--env-kwargs", failing)
    done = rollcast("train", *env, "--n-actors", 2, "--total-steps", 500, "--run-dir", tmp_path / "run")
    assert done.returncode == 1
    assert "all 2 actors failed before the first rollout" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_a_full_replay_buffer_whose_entries_are_used_up_does_not_stop_the_run(tmp_path: Path):
    """Once, neither side went on at step 2,350: the buffer had fallen below its minimal size."""
    replay = ("--replay.capacity", 900, "--replay.min-size", 600, "--replay.samples-per-insert", 4)
    options = ("--algorithm", "dqn", "--n-actors", 1, *replay, "--replay.max-times-sampled", 4)
    summary = tmp_path / "summary.json"
    ending = ("--total-steps", 3000, "--summary-json", summary, "--run-dir", tmp_path / "run")
    completed("train", "--env-id", "CartPole-v1", *options, *ending)
    assert json.loads(summary.read_text())["env_steps"] >= 3000


def test_ppo_learns_from_rollouts_of_one_step(tmp_path: Path):
    sizes = ("--n-rollout-steps", 1, "--n-actors", 1, "--envs-per-actor", 4, "--batch-size", 4)
    options = ("--algorithm", "ppo", *sizes, "--ppo.minibatch-steps", 4, "--total-steps", 600)
    summary = tmp_path / "summary.json"
    completed("train", "--env-id", "CartPole-v1", *options, "--summary-json", summary, "--run-dir", tmp_path / "run")
    assert json.loads(summary.read_text())["env_steps"] >= 600
