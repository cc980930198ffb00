"""Settings that exclude each other, that an algorithm excludes, or that the machine does."""

import dataclasses
import socket
from pathlib import Path

import pytest
import torch

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

OWN_DQN = "tests.unit.learner.algorithms.own_algorithms:OwnDqn"
SEQUENTIAL = "--actor-kind sequential"
SMALL_BATCH = "--n-rollout-steps 8 --batch-size 16"
OLDER_POLICIES = "--updates-per-broadcast 2 --max-policy-lag 3 --batch-size 12 --durable"


def settings_of(options: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", options.split())


def check(algorithm: str, options: str, spaces=SPACES) -> None:
    settings = settings_of(f"--algorithm {algorithm} {options}")
    made = make_algorithm(settings, spaces, choose_device("cpu"))
    for check_one in (check_on_policy, check_batches, check_batch_ahead, check_evaluation):
        check_one(settings, made)


def test_cuda_is_refused_without_a_cuda_device_and_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigurationError, match="'cuda', but torch finds no CUDA device here; use --device cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        # what would make batches of older policies
        ("ppo", "--updates-per-broadcast 2", "--updates-per-broadcast 2; expected 1"),
        ("ppo", "--max-policy-lag 3", "--max-policy-lag 3; expected none"),
        ("ppo", "--durable", "--durable with --algorithm ppo; expected one of the two"),
        ("ppo", "--batch-size 12", "--batch-size: 12 .* 8 trajectories .* expected a multiple"),
        # other entries than the algorithm learns from
        *(
            (name, f"--replay.entry {entry}", f"--replay.entry: '{entry}' with --algorithm {name}, which lear")
            for name, entry in (
                ("dqn", "rollouts"),
                ("sac", "rollouts"),
                (OWN_DQN, "rollouts"),
                ("r2d2", "transitions"),
            )
        ),
        # minibatches that are larger than a batch, and batches that cut rollouts
        *(
            (
                name,
                f"{SMALL_BATCH} --{name}.minibatch-steps 129",
                f"--{name}.minibatch-steps: 129, and a batch has 128 steps",
            )
            for name in ("ppo", "appo")
        ),
        ("impala", "--deterministic --batch-size 12", "batch_size is 12, and an actor collects 8 trajectories at once"),
        # actors that no limiter would let play
        (OWN_DQN, SEQUENTIAL, r"--actor-kind sequential .* without --replay.samples-per-insert"),
        # batches ahead where nothing comes ahead
        ("ppo", "--batch-ahead on", "--algorithm ppo, which learns only from the newest policy's rollouts.*; choose"),
        ("dqn", "--batch-ahead on", "--algorithm dqn, which draws its batches from a replay buffer.*; choose"),
        ("impala", "--batch-ahead on --deterministic", "on with --deterministic: actors play in step.*; choose"),
        ("impala", f"--batch-ahead on {SEQUENTIAL}", f"on with {SEQUENTIAL}: actors do not play while.*; choose"),
    ],
)
def test_refuses_what_the_algorithm_cannot_learn_from(algorithm: str, options: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        check(algorithm, options)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", ""),
        ("ppo", "--max-policy-lag 0 --batch-size 24"),
        ("ppo", "--deterministic --batch-ahead auto"),
        ("ppo", f"{SMALL_BATCH} --ppo.minibatch-steps 128 --batch-ahead off"),
        ("appo", f"{SMALL_BATCH} --appo.minibatch-steps 128"),
        ("impala", OLDER_POLICIES),
        ("appo", OLDER_POLICIES),
        ("impala", "--batch-ahead on --max-policy-lag 3"),
        ("impala", f"--deterministic --batch-size 12 --batch-ahead auto {SEQUENTIAL}"),
        ("dqn", "--batch-ahead auto"),
        (OWN_DQN, ""),
        (OWN_DQN, f"{SEQUENTIAL} --replay.samples-per-insert 8"),
        (OWN_DQN, f"{SEQUENTIAL} --replay.max-times-sampled 8"),
    ],
)
def test_accepts_what_the_algorithm_can_learn_from(algorithm: str, options: str):
    check(algorithm, options)


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("ppo", "", r"substeps \['base', 'scout'\]; expected one"),
        ("appo", "--deterministic", r"substeps \['base', 'scout'\] is not supported"),
        ("r2d2", "--deterministic", r"substeps \['base', 'scout'\] is not supported"),
        (
            "impala",
            "--batch-ahead on --max-policy-lag 3",
            "--batch-ahead on with --max-policy-lag 3 and several substeps",
        ),
    ],
)
def test_refuses_several_substeps_where_batches_must_be_of_one_policy_or_in_order(
    algorithm: str, options: str, message: str
):
    with pytest.raises(ConfigurationError, match=message):
        check(algorithm, options, TWO_SUBSTEPS)
    check("appo", "", TWO_SUBSTEPS)
    check("impala", "--batch-ahead on", TWO_SUBSTEPS)


@pytest.mark.parametrize(
    ("options", "spaces"),
    [
        ("--updates-per-broadcast 2", SPACES),
        ("--max-policy-lag 3", SPACES),
        ("--durable", SPACES),
        ("--batch-size 12", SPACES),
        ("--batch-ahead on", SPACES),
        ("", TWO_SUBSTEPS),
    ],
)
def test_says_that_the_algorithm_is_the_default_and_which_takes_the_option(options: str, spaces):
    settings = settings_of(options)
    algorithm = make_algorithm(settings, spaces, choose_device("cpu"))
    says = r"--algorithm ppo \(the default\).*choose --algorithm appo or impala"
    with pytest.raises(ConfigurationError, match=says):
        check_on_policy(settings, algorithm)
        check_batch_ahead(settings, algorithm)


BY_STEPS = "--eval-interval-steps 100"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--policy-rounding bfloat16 --deterministic",
            "--policy-rounding bfloat16 with --deterministic; expected none",
        ),
        (f"{BY_STEPS} --eval-interval-s 5", "--eval-interval-s 5 with --eval-interval-steps 100; expected one"),
        ("--stop-on eval", "--stop-on eval without an evaluation; expected --eval-interval-s or"),
        ("--eval-patience 3", "--eval-patience without an evaluation"),
        (f"{BY_STEPS} --stop-on eval --deterministic", "--stop-on eval with --deterministic; expected"),
        (f"{BY_STEPS} --eval-patience 3 --deterministic", "--eval-patience with --deterministic"),
        (f"--eval-interval-s 5 --stop-on eval --deterministic {SEQUENTIAL}", "otherwise the clock decides"),
    ],
)
def test_refuses_evaluations_and_roundings_that_cannot_be(options: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        check_settings(settings_of(options))


@pytest.mark.parametrize(
    ("options", "decides"),
    [
        ("--policy-rounding bfloat16", True),
        ("--stop-on train", False),
        ("--deterministic", False),
        (f"--deterministic {SEQUENTIAL}", True),
    ],
)
def test_evaluation_decides_the_end_unless_the_clock_would(options: str, decides: bool):
    settings = settings_of(f"{BY_STEPS} {options}")
    check_settings(settings)
    schedule = evaluation_schedule(settings)
    assert schedule is not None
    assert schedule.decides is decides
    assert evaluation_schedule(settings_of("")) is None, "nothing is evaluated by default"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--eval-actions both", "with --eval-actions both; expected likeliest or drawn"),
        ("--hidden-sizes 3000,3000", r"a policy of 36,[0-9,]+ bytes; expected at most 27: all are sent together"),
    ],
)
@pytest.mark.slow
def test_rejects_opponents_that_cannot_be(options: str, message: str):
    two = {key: dataclasses.replace(substep, n_agents=2) for key, substep in SPACES.items()}
    check("ppo", "--eval-opponents 30", two)
    with pytest.raises(ConfigurationError, match=message):
        check("ppo", f"--eval-opponents 30 {options}", two)


def check_free(options: str, *, is_first: bool = True) -> None:
    check_places(settings_of(options), is_first=is_first)


def test_rejects_a_summary_that_could_not_be_written_at_the_end(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="--summary-json: there is no folder 'nowhere'; expected an existing"):
        check_free("--summary-json nowhere/s.json")
    with pytest.raises(ConfigurationError, match=r"--summary-json: .* is a folder; expected a file"):
        check_free(f"--summary-json {tmp_path}")


@pytest.mark.parametrize("option", ["--address", "--metrics-address"])
def test_rejects_an_address_that_another_process_has(option: str, tmp_path: Path):
    check_free(f"{option} 127.0.0.1:0 --run-dir {tmp_path / 'new'}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=f"{address}' is in use by another process"):
            check_free(f"{option} {address}")
        if option == "--address":
            check_free(f"{option} {address} {SEQUENTIAL}")  # serves nobody
    assert not (tmp_path / "new").exists()


def test_rejects_a_directory_that_is_not_new(tmp_path: Path):
    check_free(f"--run-dir {tmp_path}")
    (tmp_path / "settings.yaml").write_text("")
    with pytest.raises(ConfigurationError, match="is not empty; expected a new one"):
        check_free(f"--run-dir {tmp_path}")
    check_free(f"--run-dir {tmp_path}", is_first=False)
