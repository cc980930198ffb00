"""The source of a setting's value."""

from pathlib import Path

import pytest

from rollcast.services.settings.origins import Origins


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROLLCAST_SEED", "2")
    in_file = {"seed": 3, "algorithm": "sac"}
    assert Origins(arguments=("--seed", "1"), from_file=in_file).value_of("seed") == "1"
    assert Origins(arguments=("--seed=1",), from_file=in_file).value_of("seed") == "1"
    assert Origins(from_file=in_file).value_of("seed") == "2"
    assert Origins(from_file=in_file).value_of("algorithm") == "sac"
    assert Origins(from_file=in_file).value_of("n_actors") is None


def test_describes_everything_but_the_command_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROLLCAST_IMPALA", "{}")
    origins = Origins(arguments=("--seed=1",), from_file={"algorithm": "sac"}, file=Path("run.yaml"))
    assert origins.describe(("seed",)) == ""
    assert origins.describe(("impala", "learning_rate")) == " (from ROLLCAST_IMPALA)"
    assert origins.describe(("algorithm",)) == " (from 'run.yaml')"
    assert origins.describe(("n_actors",)) == ""
