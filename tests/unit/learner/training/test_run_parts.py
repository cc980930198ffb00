import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.devices.torch_threads import choose_torch_threads
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import (
    batch_line,
    batch_size,
    capture_updates,
    make_algorithm,
    make_arithmetic,
    make_replay_buffers,
)
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import SubstepSpaces
from tests.rollouts import CARTPOLE_LIKE


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--algorithm impala", 16),
        ("--algorithm impala --n-actors 1", 8),
        ("--algorithm impala --n-actors 8 --envs-per-actor 64", 512),
        ("--algorithm impala --n-actors 1 --envs-per-actor 1", 8),
        ("--algorithm impala --n-actors 2 --envs-per-actor 3", 9),
        ("--algorithm impala --n-actors 1 --envs-per-actor 1 --deterministic", 1),
        ("", 16),
        ("--n-actors 2 --envs-per-actor 3", 18),
        ("--algorithm ppo", 16),
        ("--algorithm ppo --n-actors 1", 16),
        ("--algorithm ppo --n-actors 2 --envs-per-actor 64", 128),
        ("--algorithm ppo --atari --envs-per-actor 64", 128),
        ("--algorithm appo --n-actors 3 --envs-per-actor 5", 20),
        ("--batch-size 5 --n-actors 8 --envs-per-actor 64", 5),
        ("--algorithm sac", 256),
        ("--algorithm examples.own_algorithm:ActorCritic --env-id CartPole-v1", 16),
    ],
)
def test_a_batch_has_what_the_actors_bring_in_a_round(arguments: str, expected: int):
    settings = TrainSettings.from_command_line("rollcast train", arguments.split())
    assert batch_size(settings, CARTPOLE_LIKE) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"), [("", 16), ("--envs-per-actor 64", 128), ("--deterministic --max-actors 5", 40)]
)
def test_a_learner_takes_two_actors_for_granted(arguments: str, expected: int):
    settings = ServingSettings.from_command_line("rollcast learner", ["--insecure", *arguments.split()])
    assert batch_size(settings, CARTPOLE_LIKE) == expected


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [((), "choose --algorithm appo or impala"), (("--algorithm", "appo"), None), (("--max-actors", "2"), "two actors")],
)
def test_a_learner_by_ppo_says_who_would_wait(algorithm: tuple[str, ...], told: str | None):
    line = batch_line(ServingSettings.from_command_line("rollcast learner", ["--insecure", *algorithm]), CARTPOLE_LIKE)
    assert line.startswith("batches have 16 rollouts of an environment each (--batch-size)")
    assert told in line if told else line.endswith("(--batch-size)")
    assert batch_line(TrainSettings.from_command_line("rollcast train", []), CARTPOLE_LIKE).endswith("(--batch-size)")


def test_each_agent_of_a_round_has_a_trajectory():
    (substep,) = CARTPOLE_LIKE.values()
    spaces = {"base": dataclasses.replace(substep, n_agents=3)}
    assert batch_size(TrainSettings.from_command_line("rollcast train", []), spaces) == 48


def test_algorithm_of_ones_own_may_learn_from_whole_rollouts():
    settings = TrainSettings.from_command_line(
        "rollcast train",
        ["--env-id", "CartPole-v1", "--algorithm", "examples.own_algorithm:ActorCritic", "--replay.entry", "rollouts"],
    )
    settings = settings.model_copy(update={"replay": settings.replay.model_copy(update={"capacity": 100})})
    buffers = make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)
    assert [buffer.entry for buffer in buffers.values()] == ["rollouts"]


OWN = ("--env-id", "CartPole-v1", "--algorithm", "examples.own_algorithm:ActorCritic", "--replay.capacity", "100")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sac", "--batch-size", "8"], ["32 updates to each step", "--replay.samples-per-insert 8 makes one"]),
        (["sac", "--replay.samples-per-insert", "5120"], ["20 updates to each step", "5120 with --batch-size 256"]),
        (
            ["r2d2", "--batch-size", "1", "--replay.samples-per-insert", "60"],
            ["1.5 updates to each step", "--replay.samples-per-insert 40 makes one"],
        ),
        (["sac"], []),
        (["dqn", "--batch-size", "32"], []),
        (["r2d2"], []),
    ],
)
def test_several_updates_to_a_step_are_told_at_the_start(arguments: list[str], expected: list[str]):
    given = ["--env-id", "CartPole-v1", "--replay.capacity", "2000", "--algorithm", *arguments]
    settings = TrainSettings.from_command_line("rollcast train", given)
    lines: list[str] = []
    make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=lines.append)
    told = [line for line in lines if "updates to each step" in line]
    assert len(told) == bool(expected)
    assert all(text in told[0] for text in expected)


def test_buffer_of_a_recurrent_policy_keeps_its_states():
    arguments = [*OWN, "--replay.entry", "rollouts", "--recurrence", "lstm", "--recurrent-size", "5"]
    settings = TrainSettings.from_command_line("rollcast train", arguments)
    buffers = make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)
    assert [buffer.state_size for buffer in buffers.values()] == [10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--replay.entry", "rollouts", "--replay.burn-in", "20", "--replay.sequence-length", "44"],
            "--replay.burn-in: 20 with --recurrence none; expected 0",
        ),
        (["--recurrence", "gru"], "entry is 'transitions' with a recurrent policy; expected 'rollouts'"),
    ],
)
def test_states_that_no_rollout_brings_are_refused(arguments: list[str], message: str):
    settings = TrainSettings.from_command_line("rollcast train", [*OWN, *arguments])
    with pytest.raises(ConfigurationError, match=message):
        make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-rollout-steps", "30"], "burn_in is 10 and sequence_length 30; expected together at most the 30 steps"),
        (
            ["--n-rollout-steps", "64"],
            "burn_in is 10 and sequence_length 30 with a recurrent policy; expected together the 64 steps",
        ),
        (["--recurrence", "none"], "--replay.burn-in: 10 with --recurrence none; expected 0"),
    ],
)
def test_r2d2_refuses_sequences_that_do_not_begin_where_a_state_is_stored(arguments: list[str], message: str):
    settings = TrainSettings.from_command_line(
        "rollcast train", ["--env-id", "CartPole-v1", "--algorithm", "r2d2", *arguments]
    )
    with pytest.raises(ConfigurationError, match=message):
        make_replay_buffers(settings, CARTPOLE_LIKE, device=torch.device("cpu"), announce=print)


def test_nothing_to_normalise_is_refused_before_anything_is_made():
    settings = TrainSettings.from_command_line(
        "rollcast train", ["--env-id", "FrozenLake-v1", "--algorithm", "ppo", "--normalize-observations"]
    )
    tiles = {"0": SubstepSpaces(observation=Discrete(16), action=Discrete(4))}
    with pytest.raises(
        ConfigurationError,
        match=r"--normalize-observations, and observations are Discrete\(16.*expected a Box of floats",
    ):
        make_algorithm(settings, tiles, torch.device("cpu"))
    one_has = {**tiles, "b": SubstepSpaces(observation=Box(-1, 1, (2,), np.float32), action=Discrete(4))}
    settings = settings.model_copy(update={"algorithm": "impala"})
    state = make_algorithm(settings, one_has, torch.device("cpu")).policy_state()
    assert [name for name in state if name.startswith("normalization")] == [
        f"normalization.b.{name}" for name in ("mean", "variance", "count")
    ]


@pytest.mark.parametrize("algorithm", ["sac", "dqn"])
def test_replayed_rewards_are_not_normalised(algorithm: str):
    with pytest.raises(ConfigurationError, match=f"{algorithm}.normalize-rewards"):
        TrainSettings.from_command_line(
            "rollcast train", ["--env-id", "CartPole-v1", "--algorithm", algorithm, f"--{algorithm}.normalize-rewards"]
        )


@pytest.mark.parametrize("clip", ["0", "-1", "nan", "inf", "1e7"])
def test_a_bound_of_observations_that_is_none_is_refused(clip: str):
    with pytest.raises(ConfigurationError, match="--observation-clip"):
        TrainSettings.from_command_line("rollcast train", ["--env-id", "CartPole-v1", "--observation-clip", clip])


@pytest.mark.parametrize(
    ("options", "substeps"),
    [
        (["--algorithm", "impala"], ("0",)),
        (["--algorithm", "sac", "--normalize-observations"], ("0",)),
        (["--algorithm", "dqn"], ("0",)),
        (["--algorithm", "impala"], ("a", "b")),
        (["--algorithm", "tests.unit.learner.algorithms.own_algorithms:WantsTheNewestPolicy"], ("0",)),
    ],
    ids=["impala", "sac", "dqn", "two substeps", "own"],
)
def test_published_weights_are_rounded_once_and_training_goes_on_with_float32(options: list[str], substeps: tuple[str]):
    spaces = dict.fromkeys(substeps, CARTPOLE_LIKE["0"])
    settings = TrainSettings.from_command_line("rollcast train", [*options, "--policy-rounding", "bfloat16"])
    algorithm = make_algorithm(settings, spaces, torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in algorithm.policy.state_dict().items()}
    state, first_cast = algorithm.policy_state(), algorithm.policy.state_arrays()
    assert list(state) == list(before)
    for name, array in state.items():
        np.testing.assert_array_equal(array, first_cast[name], strict=True)
        if name.startswith("networks."):
            assert not (array.view(np.uint32) & 0xFFFF).any()
            assert (array != before[name].numpy()).any() or name.endswith("bias")
            np.testing.assert_allclose(array, before[name].numpy(), rtol=2**-8)
        else:
            np.testing.assert_array_equal(array, before[name].numpy(), strict=True)
    for name, tensor in algorithm.policy.state_dict().items():
        assert torch.equal(tensor, before[name]), "the weights that train are as they were"


def test_precision_and_order_of_images_are_those_of_the_settings():
    arguments = ["--env-id", "CartPole-v1", "--precision", "bf16", "--channels-last", "off"]
    settings = TrainSettings.from_command_line("rollcast train", arguments)
    networks = make_arithmetic(settings, torch.device("cpu")).networks
    assert (networks.hidden, networks.channels_last) == (torch.bfloat16, False)


def test_graphs_are_refused_where_the_device_has_none_and_left_out_by_default():
    given = ["--env-id", "CartPole-v1", "--cuda-graphs"]
    settings = TrainSettings.from_command_line("rollcast train", [*given, "on"])
    algorithm = make_algorithm(settings, CARTPOLE_LIKE, torch.device("cpu"))
    with pytest.raises(ConfigurationError, match="--cuda-graphs on: the device is cpu, which has no graphs; expected"):
        capture_updates(settings, algorithm, torch.device("cpu"))
    for switch in ("auto", "off"):
        settings = TrainSettings.from_command_line("rollcast train", [*given, switch])
        capture_updates(settings, algorithm, torch.device("cpu"))


class Capturable(Algorithm):
    """Says that it can be captured, and remembers that it was asked to."""

    asked = False
    why_not = None

    def why_not_captured(self):
        return self.why_not

    def capture_updates(self, make_work):
        self.asked = True


def capturing(algorithm: Algorithm, *options: str, n_ranks: int = 1) -> None:
    settings = TrainSettings.from_command_line("rollcast train", ["--env-id", "CartPole-v1", *options])
    capture_updates(settings, algorithm, torch.device("cuda"), n_ranks)


def test_updates_on_a_gpu_are_captured_where_the_algorithm_can():
    algorithm = _capturable()
    capturing(algorithm)
    assert algorithm.asked


@pytest.mark.parametrize(
    ("options", "why_not", "n_ranks", "message"),
    [
        (["--deterministic"], None, 1, "no run has shown yet that they give the bits"),
        ([], "the host decides", 1, "the host decides"),
        ([], None, 2, "no run has shown yet that a graph can hold operations of all ranks"),
    ],
)
def test_updates_that_cannot_be_captured_run_without_or_are_refused(options, why_not, n_ranks, message):
    algorithm = _capturable()
    algorithm.why_not = why_not
    capturing(algorithm, *options, n_ranks=n_ranks)
    assert not algorithm.asked
    with pytest.raises(ConfigurationError, match=f"--cuda-graphs on: {message}"):
        capturing(algorithm, "--cuda-graphs", "on", *options, n_ranks=n_ranks)


def _capturable() -> Capturable:
    Capturable.__abstractmethods__ = frozenset()  # nothing else of it is used
    return Capturable()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, 1, id="a small network"),
        pytest.param({"n_weights": 1_700_000}, 8, id="a large one"),
        pytest.param({"n_weights": 1_700_000, "n_local_actors": 6}, 2, id="actors need cores"),
        pytest.param({"n_weights": 1_700_000, "n_local_actors": 9}, 1, id="actors need all cores"),
        pytest.param({"n_weights": 1_700_000, "n_local_ranks": 3}, 2, id="ranks share the cores"),
        pytest.param({"of_openmp": "3"}, 3, id="OpenMP's number"),
        pytest.param({"of_openmp": "3,2"}, 3, id="OpenMP's number, with that of nested regions"),
        pytest.param({"of_openmp": "1", "n_weights": 1_700_000}, 1, id="OpenMP's number with a large network"),
        pytest.param({"of_openmp": "0"}, 1, id="not OpenMP's"),
        pytest.param({"of_openmp": "all"}, 1, id="nonsense"),
        pytest.param({"of_openmp": "3", "n_threads": 5, "n_weights": 1_700_000}, 5, id="the option"),
    ],
)
def test_one_thread_unless_asked_for_more_or_the_network_is_large(given: dict[str, object], expected: int):
    usual = {
        "n_threads": 0,
        "n_weights": 9_000,
        "n_cores": 8,
        "n_local_actors": 0,
        "n_local_ranks": 1,
        "of_openmp": None,
    }
    assert choose_torch_threads(**(usual | given))[0] == expected
