"""Settings that an on-policy algorithm excludes."""

import pytest

from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_checks import check_on_policy
from rollcast.learner.training.run_parts import choose_device, make_algorithm
from rollcast.services.errors import ConfigurationError
from tests.batches import SPACES
from tests.two_substeps import SPACES as TWO_SUBSTEPS


def check(*options: str, algorithm: str = "ppo", spaces=SPACES) -> None:
    settings = TrainSettings.from_command_line("rollcast train", ["--algorithm", algorithm, *options])
    check_on_policy(settings, make_algorithm(settings, spaces, choose_device("cpu")))


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


@pytest.mark.parametrize("options", [[], ["--max-policy-lag", "0"], ["--batch-size", "24"], ["--deterministic"]])
def test_accepts_what_keeps_batches_on_policy(options: list[str]):
    check(*options)


def test_other_algorithms_may_use_older_policies():
    check("--updates-per-broadcast", "2", "--max-policy-lag", "3", "--batch-size", "12", algorithm="impala")
