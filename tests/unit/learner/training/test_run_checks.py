"""Settings that an on-policy algorithm excludes."""

import dataclasses
import socket
from pathlib import Path

import pytest

from rollcast.learner.devices.choice import choose_device
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_checks import (
    check_batch_ahead,
    check_batches,
    check_evaluation,
    check_on_policy,
    check_places,
    check_settings,
)
from rollcast.learner.training.run_parts import evaluation_schedule, make_algorithm
from rollcast.services.errors import AddressInUseError, ConfigurationError
from tests.batches import SPACES
from tests.two_substeps import SPACES as TWO_SUBSTEPS


def check(*options: str, algorithm: str = "ppo", spaces=SPACES) -> None:
    settings = TrainSettings.from_command_line("rollcast train", ["--algorithm", algorithm, *options])
    algorithm_made = make_algorithm(settings, spaces, choose_device("cpu"))
    check_on_policy(settings, algorithm_made)
    check_batches(settings, algorithm_made)
    check_batch_ahead(settings, algorithm_made)
    check_evaluation(settings, algorithm_made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--updates-per-broadcast", "2"], "--updates-per-broadcast 2; expected 1"),
        (["--max-policy-lag", "3"], "--max-policy-lag 3; expected none"),
        (["--durable"], "--durable with --algorithm ppo; expected one of the two"),
        (["--batch-size", "12"], "--batch-size: 12 .* 8 trajectories .* expected a multiple"),
    ],
)
def test_rejects_what_would_make_batches_of_older_policies(options: list[str], message: str):
    with pytest.raises(ConfigurationError, match=message):
        check(*options)


def test_rejects_several_substeps_by_name():
    with pytest.raises(ConfigurationError, match=r"substeps \['base', 'scout'\]; expected one"):
        check(spaces=TWO_SUBSTEPS)


@pytest.mark.parametrize(
    ("options", "spaces"),
    [
        (["--updates-per-broadcast", "2"], SPACES),
        (["--max-policy-lag", "3"], SPACES),
        (["--durable"], SPACES),
        (["--batch-size", "12"], SPACES),
        (["--batch-ahead", "on"], SPACES),
        ([], TWO_SUBSTEPS),
    ],
)
def test_says_that_the_algorithm_is_the_default_and_which_takes_the_option(options: list[str], spaces):
    settings = settings_of(*options)
    algorithm = make_algorithm(settings, spaces, choose_device("cpu"))
    says = r"--algorithm ppo \(the default\).*choose --algorithm appo or impala"
    with pytest.raises(ConfigurationError, match=says):
        check_on_policy(settings, algorithm)
        check_batch_ahead(settings, algorithm)


@pytest.mark.parametrize("options", [[], ["--max-policy-lag", "0"], ["--batch-size", "24"], ["--deterministic"]])
def test_accepts_what_keeps_batches_on_policy(options: list[str]):
    check(*options)


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_other_algorithms_may_use_older_policies(algorithm: str):
    options = ("--updates-per-broadcast", "2", "--max-policy-lag", "3", "--batch-size", "12", "--durable")
    check(*options, algorithm=algorithm)
    check(algorithm=algorithm, spaces=TWO_SUBSTEPS)


OWN_DQN = "tests.unit.learner.algorithms.own_algorithms:OwnDqn"


@pytest.mark.parametrize(
    ("algorithm", "entry"), [("dqn", "rollouts"), ("sac", "rollouts"), (OWN_DQN, "rollouts"), ("r2d2", "transitions")]
)
def test_rejects_a_buffer_of_other_entries_than_the_algorithm_learns_from(algorithm: str, entry: str):
    with pytest.raises(ConfigurationError, match=f"--replay.entry: '{entry}' with --algorithm {algorithm}, which lear"):
        check("--replay.entry", entry, algorithm=algorithm)


@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_rejects_minibatches_that_are_larger_than_a_batch(name: str):
    few = ["--n-rollout-steps", "8", "--batch-size", "16"]
    with pytest.raises(ConfigurationError, match=f"--{name}.minibatch-steps: 129, and a batch has 128 steps"):
        check(*few, f"--{name}.minibatch-steps", "129", algorithm=name)
    check(*few, f"--{name}.minibatch-steps", "128", algorithm=name)


@pytest.mark.parametrize("algorithm", ["appo", "r2d2"])
def test_rejects_deterministic_collecting_of_several_substeps(algorithm: str):
    with pytest.raises(ConfigurationError, match=r"substeps \['base', 'scout'\] is not supported"):
        check("--deterministic", algorithm=algorithm, spaces=TWO_SUBSTEPS)


def test_rejects_deterministic_batches_that_cut_rollouts():
    with pytest.raises(ConfigurationError, match="batch_size is 12, and an actor plays 8 trajectories at once"):
        check("--deterministic", "--batch-size", "12", algorithm="impala")
    check("--deterministic", "--batch-size", "12", "--actor-kind", "sequential", algorithm="impala")


def test_rejects_sequential_actors_that_no_limiter_would_let_play():
    sequential = ["--actor-kind", "sequential"]
    with pytest.raises(ConfigurationError, match=r"--actor-kind sequential .* without --replay.samples-per-insert"):
        check(*sequential, algorithm=OWN_DQN)
    check(*sequential, "--replay.samples-per-insert", "8", algorithm=OWN_DQN)
    check(*sequential, "--replay.max-times-sampled", "8", algorithm=OWN_DQN)
    check(algorithm=OWN_DQN)


BY_STEPS = ["--eval-interval-steps", "100"]


def settings_of(*options: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", [*options])


def test_rejects_rounded_policies_in_a_deterministic_run():
    with pytest.raises(ConfigurationError, match="--policy-rounding bfloat16 with --deterministic; expected none"):
        check_settings(settings_of("--policy-rounding", "bfloat16", "--deterministic"))
    check_settings(settings_of("--policy-rounding", "bfloat16"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*BY_STEPS, "--eval-interval-s", "5"], "--eval-interval-s 5 with --eval-interval-steps 100; expected one"),
        (["--stop-on", "eval"], "--stop-on eval without an evaluation; expected --eval-interval-s or"),
        (["--eval-patience", "3"], "--eval-patience without an evaluation"),
        ([*BY_STEPS, "--stop-on", "eval", "--deterministic"], "--stop-on eval with --deterministic; expected"),
        ([*BY_STEPS, "--eval-patience", "3", "--deterministic"], "--eval-patience with --deterministic"),
        (
            ["--eval-interval-s", "5", "--stop-on", "eval", "--deterministic", "--actor-kind", "sequential"],
            "otherwise the clock decides",
        ),
    ],
)
def test_rejects_evaluations_that_cannot_be(options: list[str], message: str):
    with pytest.raises(ConfigurationError, match=message):
        check_settings(settings_of(*options))


@pytest.mark.parametrize(
    ("options", "decides"),
    [
        ([], True),
        (["--stop-on", "train"], False),
        (["--deterministic"], False),
        (["--deterministic", "--actor-kind", "sequential"], True),
    ],
)
def test_evaluation_decides_the_end_unless_the_clock_would(options: list[str], decides: bool):
    settings = settings_of(*BY_STEPS, *options)
    check_settings(settings)
    schedule = evaluation_schedule(settings)
    assert schedule is not None
    assert schedule.decides is decides


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eval-actions", "both"], "with --eval-actions both; expected likeliest or drawn"),
        (["--hidden-sizes", "3000,3000"], r"a policy of 36,[0-9,]+ bytes; expected at most 27: they are sent together"),
    ],
)
@pytest.mark.slow
def test_rejects_opponents_that_cannot_be(options: list[str], message: str):
    two = {key: dataclasses.replace(substep, n_agents=2) for key, substep in SPACES.items()}
    check("--eval-opponents", "30", spaces=two)
    with pytest.raises(ConfigurationError, match=message):
        check("--eval-opponents", "30", *options, spaces=two)


def test_nothing_is_evaluated_by_default():
    assert evaluation_schedule(settings_of()) is None


@pytest.mark.parametrize(
    ("algorithm", "options", "reason"),
    [
        ("ppo", [], "--algorithm ppo, which learns from the newest policy's rollouts only"),
        ("dqn", [], "--algorithm dqn, which draws its batches from a replay buffer"),
        ("impala", ["--deterministic"], "--deterministic: actors play in step"),
        ("impala", ["--actor-kind", "sequential"], "--actor-kind sequential: actors do not play while"),
    ],
)
def test_rejects_batching_ahead_where_nothing_comes_ahead(algorithm: str, options: list[str], reason: str):
    with pytest.raises(
        ConfigurationError, match=f"--batch-ahead on with {reason}.*; choose --batch-ahead auto, or off"
    ):
        check("--batch-ahead", "on", *options, algorithm=algorithm)
    for choice in ("auto", "off"):
        check("--batch-ahead", choice, *options, algorithm=algorithm)


def test_rejects_batching_ahead_with_a_limit_of_lag_and_several_substeps():
    on = ("--batch-ahead", "on")
    with pytest.raises(ConfigurationError, match="--batch-ahead on with --max-policy-lag 3 and several substeps"):
        check(*on, "--max-policy-lag", "3", algorithm="impala", spaces=TWO_SUBSTEPS)
    check(*on, algorithm="impala", spaces=TWO_SUBSTEPS)
    check(*on, "--max-policy-lag", "3", algorithm="impala")


def check_free(*options: object, is_first: bool = True) -> None:
    settings = TrainSettings.from_command_line("rollcast train", [str(option) for option in options])
    check_places(settings, is_first=is_first)


@pytest.mark.parametrize("option", ["--address", "--metrics-address"])
def test_rejects_an_address_that_another_process_has(option: str, tmp_path: Path):
    check_free(option, "127.0.0.1:0", "--run-dir", tmp_path / "new")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=f"{address}' is in use by another process"):
            check_free(option, address)
        if option == "--address":
            check_free(option, address, "--actor-kind", "sequential")  # serves nobody
    assert not (tmp_path / "new").exists()


def test_rejects_a_directory_that_is_not_new(tmp_path: Path):
    check_free("--run-dir", tmp_path)
    (tmp_path / "settings.yaml").write_text("")
    with pytest.raises(ConfigurationError, match="is not empty; expected a new one"):
        check_free("--run-dir", tmp_path)
    check_free("--run-dir", tmp_path, is_first=False)
