import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.devices.torch_threads import choose_torch_threads
from rollcast.learner.replay.substeps import SubstepBuffers
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
from tests.documents import text_of
from tests.rollouts import CARTPOLE_LIKE

CPU = torch.device("cpu")
OWN = "--algorithm examples.own_algorithm:ActorCritic"


def settings_of(options: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", options.split())


def buffers_of(options: str, announce: Callable[[str], None] = print) -> SubstepBuffers:
    return make_replay_buffers(settings_of(options), CARTPOLE_LIKE, device=CPU, announce=announce)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--algorithm impala", 8),
        ("--algorithm impala --n-actors 1", 8),
        ("--algorithm impala --n-actors 1 --envs-per-actor 64", 64),
        ("--algorithm impala --n-actors 3 --envs-per-actor 64", 128),
        ("--algorithm impala --n-actors 8 --envs-per-actor 64", 256),
        ("--algorithm impala --n-actors 1 --envs-per-actor 1", 4),
        ("--algorithm impala --n-actors 1 --envs-per-actor 4", 4),
        ("--algorithm impala --n-actors 2 --envs-per-actor 4", 4),
        ("--algorithm impala --n-actors 2 --envs-per-actor 3", 6),
        ("--algorithm impala --n-actors 1 --envs-per-actor 1 --deterministic", 1),
        ("--algorithm impala --n-actors 4 --deterministic", 32),
        ("", 16),
        ("--n-actors 2 --envs-per-actor 3", 18),
        ("--algorithm ppo", 16),
        ("--algorithm ppo --n-actors 1", 16),
        ("--algorithm ppo --n-actors 2 --envs-per-actor 64", 128),
        ("--algorithm ppo --atari --envs-per-actor 64", 128),
        ("--algorithm appo --n-actors 3 --envs-per-actor 5", 20),
        ("--batch-size 5 --n-actors 8 --envs-per-actor 64", 5),
        ("--algorithm sac", 256),
        (OWN, 16),
    ],
)
def test_a_batch_has_what_the_actors_bring_in_a_round_and_impalas_what_half_of_them_bring(options: str, expected: int):
    assert batch_size(settings_of(options), CARTPOLE_LIKE) == expected


def test_the_page_and_the_help_tell_the_smallest_batches():
    alone = "--n-actors 1 --envs-per-actor 1 --algorithm"
    algorithms = ("impala", "ppo", "appo", "dqn", "r2d2", "sac")
    least = {name: batch_size(settings_of(f"{alone} {name}"), CARTPOLE_LIKE) for name in algorithms}
    assert least["ppo"] == least["appo"]
    expected = f"A batch has at least {least['impala']} trajectories with IMPALA, and {least['ppo']} with PPO and APPO."
    assert expected in text_of("tune.md")
    told = TrainSettings.model_fields["batch_size"].description
    assert f"at least {least['ppo']}; with IMPALA, of half of them, at least {least['impala']}; " in told
    assert f"with DQN {least['dqn']} entries, R2D2 {least['r2d2']}, SAC {least['sac']}." in told


@pytest.mark.parametrize(
    ("options", "n_rollout_steps", "total_steps"),
    [
        ("", 128, 1_000_000),
        ("--envs-per-actor 64", 128, 1_000_000),
        ("--n-actors 3 --envs-per-actor 64", 85, 1_000_000),
        ("--n-actors 8 --envs-per-actor 64", 32, 1_024_000),
        ("--algorithm appo --n-actors 8 --envs-per-actor 256", 8, 4_096_000),
        ("--n-actors 1024 --envs-per-actor 64", 8, 131_072_000),
        ("--n-actors 8 --envs-per-actor 64 --batch-size 512", 128, 1_024_000),
        ("--n-actors 8 --envs-per-actor 64 --n-rollout-steps 200 --total-steps 500", 200, 500),
        ("--n-actors 8 --envs-per-actor 64 --recurrence gru", 128, 1_024_000),
        ("--algorithm impala --n-actors 8 --envs-per-actor 64", 64, 20_000_000),
        ("--algorithm impala --n-actors 8 --envs-per-actor 256", 32, 20_000_000),
        ("--algorithm impala --n-actors 6 --envs-per-actor 64 --deterministic", 42, 20_000_000),
        ("--serve-environments localhost:0 --envs-per-actor 256", 64, 1_000_000),
        ("--algorithm sac --n-actors 8 --envs-per-actor 256", 8, 1_000_000),
        (f"{OWN} --n-actors 8 --envs-per-actor 256", 64, 20_000_000),
    ],
)
def test_many_environments_make_shorter_rollouts_and_enough_steps_for_long_episodes(
    options: str, n_rollout_steps: int, total_steps: int
):
    settings = settings_of(options)
    assert (settings.n_rollout_steps, settings.total_steps) == (n_rollout_steps, total_steps)


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
    assert line.startswith("batches have 16 trajectories of one environment each (--batch-size), with 128 steps")
    assert told in line if told else line.endswith("(--appo.minibatch-steps)")
    assert batch_line(settings_of(""), CARTPOLE_LIKE).endswith("(--ppo.minibatch-steps)")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "(--n-rollout-steps), in minibatches of 64 steps (--ppo.minibatch-steps)"),
        ("--envs-per-actor 64", ", in minibatches of 512 steps (--ppo.minibatch-steps)"),
        ("--algorithm appo --recurrence gru", ", in minibatches of 256 steps (--appo.minibatch-steps)"),
        ("--n-rollout-steps 2", ", in minibatches of 32 steps (--ppo.minibatch-steps)"),
        ("--ppo.minibatch-steps 32", ", in minibatches of 32 steps (--ppo.minibatch-steps)"),
        ("--algorithm impala", " steps (--n-rollout-steps)"),
    ],
)
def test_minibatches_are_told(options: str, told: str):
    assert batch_line(settings_of(options), CARTPOLE_LIKE).endswith(told)


def test_each_agent_of_a_round_has_a_trajectory():
    (substep,) = CARTPOLE_LIKE.values()
    several = {"base": dataclasses.replace(substep, n_agents=3)}
    assert batch_size(settings_of(""), several) == 48
    expected = "batches have 48 trajectories of one agent each (--batch-size), with 128 steps (--n-rollout-steps), "
    assert batch_line(settings_of(""), several).startswith(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("sac --batch-size 8", ["32 updates to each step", "--replay.samples-per-insert 8 makes one"]),
        ("sac --replay.samples-per-insert 5120", ["20 updates to each step", "5120 with --batch-size 256"]),
        (
            "r2d2 --batch-size 1 --replay.samples-per-insert 60",
            ["1.5 updates to each step", "--replay.samples-per-insert 40 makes one"],
        ),
        ("sac", []),
        ("dqn --batch-size 32", []),
        ("r2d2", []),
    ],
)
def test_several_updates_to_a_step_are_told_at_the_start(options: str, expected: list[str]):
    lines: list[str] = []
    buffers_of(f"--replay.capacity 2000 --algorithm {options}", lines.append)
    told = [line for line in lines if "updates to each step" in line]
    assert len(told) == bool(expected)
    assert all(text in told[0] for text in expected)


def test_buffer_of_ones_own_algorithm_keeps_whole_rollouts_and_recurrent_states_if_asked_for():
    options = f"{OWN} --replay.capacity 100 --replay.entry rollouts --recurrence lstm --recurrent-size 5"
    assert [(buffer.entry, buffer.state_size) for buffer in buffers_of(options).values()] == [("rollouts", 10)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            f"{OWN} --replay.entry rollouts --replay.burn-in 20 --replay.sequence-length 44",
            "--replay.burn-in: 20 with --recurrence none; expected 0",
        ),
        (f"{OWN} --recurrence gru", "--replay.entry is 'transitions' with a recurrent policy; expected 'rollouts'"),
        (
            "--algorithm r2d2 --n-rollout-steps 30",
            "--replay.burn-in is 10 and --replay.sequence-length 30; expected together at most the 30 steps",
        ),
        (
            "--algorithm r2d2 --n-rollout-steps 64",
            "--replay.burn-in is 10 and --replay.sequence-length 30 with a recurrent policy; expected together the 64",
        ),
        (
            "--algorithm dqn --replay.min-size 100 --batch-size 256",
            "^--replay.min-size is 100, below the batch_size of 256; .* raise --replay.min-size or leave it empty",
        ),
    ],
)
def test_sequences_and_states_that_no_rollout_brings_are_refused(options: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        buffers_of(options)


def test_nothing_to_normalise_is_refused_before_anything_is_made():
    tiles = {"0": SubstepSpaces(observation=Discrete(16), action=Discrete(4))}
    refused = r"--normalize-observations, and observations are Discrete\(16.*expected a Box of floats"
    with pytest.raises(ConfigurationError, match=refused):
        make_algorithm(settings_of("--algorithm ppo --normalize-observations"), tiles, CPU)
    one_has = {**tiles, "b": SubstepSpaces(observation=Box(-1, 1, (2,), np.float32), action=Discrete(4))}
    state = make_algorithm(settings_of("--algorithm impala --normalize-observations"), one_has, CPU).policy_state()
    assert [name for name in state if name.startswith("normalization")] == [
        f"normalization.b.{name}" for name in ("mean", "variance", "count")
    ]


@pytest.mark.parametrize(
    "options",
    [
        *(f"--observation-clip {clip}" for clip in ("0", "-1", "nan", "inf", "1e7")),
        *(f"--algorithm {name} --{name}.normalize-rewards" for name in ("sac", "dqn")),
    ],
)
def test_bounds_that_are_none_and_options_that_an_algorithm_lacks_are_refused(options: str):
    with pytest.raises(ConfigurationError, match=r"--observation-clip|normalize-rewards"):
        settings_of(options)


@pytest.mark.parametrize(
    ("options", "substeps"),
    [
        ("--algorithm impala", ("0",)),
        ("--algorithm sac --normalize-observations", ("0",)),
        ("--algorithm dqn", ("0",)),
        ("--algorithm impala", ("a", "b")),
        ("--algorithm tests.unit.learner.algorithms.own_algorithms:WantsTheNewestPolicy", ("0",)),
    ],
    ids=["impala", "sac", "dqn", "two substeps", "own"],
)
def test_published_weights_are_rounded_once_and_training_goes_on_with_float32(options: str, substeps: tuple[str]):
    spaces = dict.fromkeys(substeps, CARTPOLE_LIKE["0"])
    algorithm = make_algorithm(settings_of(f"{options} --policy-rounding bfloat16"), spaces, CPU)
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
    networks = make_arithmetic(settings_of("--precision bf16 --channels-last off"), CPU).networks
    assert (networks.hidden, networks.channels_last) == (torch.bfloat16, False)


def test_graphs_are_refused_where_the_device_has_none_and_left_out_by_default():
    algorithm = make_algorithm(settings_of(""), CARTPOLE_LIKE, CPU)
    with pytest.raises(ConfigurationError, match="--cuda-graphs on: the device is cpu, which has no graphs; expected"):
        capture_updates(settings_of("--cuda-graphs on"), algorithm, CPU)
    for switch in ("auto", "off"):
        capture_updates(settings_of(f"--cuda-graphs {switch}"), algorithm, CPU)


class Capturable(Algorithm):
    """Says that it can be captured, and remembers that it was asked to."""

    asked = False
    why_not = None

    def why_not_captured(self):
        return self.why_not

    def capture_updates(self, make_work):
        self.asked = True


@pytest.mark.parametrize(
    ("options", "why_not", "n_ranks", "message"),
    [
        ("", None, 1, ""),
        ("--deterministic", None, 1, "graphs are not tested to be bit-identical"),
        ("", "the host decides", 1, "the host decides"),
        ("", None, 2, "graphs are not tested with several ranks"),
    ],
)
def test_updates_on_a_gpu_are_captured_where_they_can_be(options: str, why_not: str | None, n_ranks: int, message: str):
    Capturable.__abstractmethods__ = frozenset()  # nothing else of it is used
    algorithm, gpu = Capturable(), torch.device("cuda")
    algorithm.why_not = why_not
    capture_updates(settings_of(options), algorithm, gpu, n_ranks)
    assert algorithm.asked is not bool(message)
    if message:
        with pytest.raises(ConfigurationError, match=f"--cuda-graphs on: {message}"):
            capture_updates(settings_of(f"--cuda-graphs on {options}"), algorithm, gpu, n_ranks)


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
