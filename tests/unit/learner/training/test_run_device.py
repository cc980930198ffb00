"""The device of a run, its arithmetic, and graphs where they are possible."""

import pytest
import torch

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_device import capture_updates, choose_torch_threads, make_arithmetic
from rollcast.learner.training.run_parts import make_algorithm
from rollcast.services.errors import ConfigurationError
from tests.rollouts import CARTPOLE_LIKE


def test_precision_that_the_device_has_not_is_refused_before_anything_is_made():
    settings = TrainSettings.from_command_line("rollcast train", ["--env-id", "CartPole-v1", "--precision", "tf32"])
    with pytest.raises(ConfigurationError, match="--precision tf32 on the device cpu"):
        make_arithmetic(settings, torch.device("cpu"))


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


def capturing(algorithm: Algorithm, *options: str) -> None:
    settings = TrainSettings.from_command_line("rollcast train", ["--env-id", "CartPole-v1", *options])
    capture_updates(settings, algorithm, torch.device("cuda"))


def test_updates_on_a_gpu_are_captured_where_the_algorithm_can():
    algorithm = _capturable()
    capturing(algorithm)
    assert algorithm.asked


@pytest.mark.parametrize(
    ("options", "why_not", "message"),
    [
        (["--deterministic"], None, "no run has shown yet that they give the bits"),
        ([], "the host decides", "the host decides"),
    ],
)
def test_updates_that_cannot_be_captured_run_without_or_are_refused(options, why_not, message):
    algorithm = _capturable()
    algorithm.why_not = why_not
    capturing(algorithm, *options)
    assert not algorithm.asked
    with pytest.raises(ConfigurationError, match=f"--cuda-graphs on: {message}"):
        capturing(algorithm, "--cuda-graphs", "on", *options)


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
