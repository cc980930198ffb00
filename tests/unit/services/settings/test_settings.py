"""Settings from the command line, the environment and a file, and what is said of those that are wrong."""

from pathlib import Path

import pytest

from rollcast.services.settings.origins import Origins
from tests.unit.services.settings.example_settings import Settings, read, refused


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


class TestEnvironment:
    @pytest.mark.parametrize(
        ("variable", "value", "message"),
        [
            ("ROLLCAST_SIZES", "3,x", "--sizes: 'x' is not valid (from ROLLCAST_SIZES): "),
            ("rollcast_seed", "-1", "--seed: '-1' is not valid (from ROLLCAST_SEED): "),
            ("ROLLCAST_NETWORK", "{", "--network: '{' is not valid (from ROLLCAST_NETWORK): "),
            (
                "ROLLCAST_NETWORK__LEARNIG_RATE",
                "1",
                "network.learnig_rate (from ROLLCAST_NETWORK__LEARNIG_RATE): there is no such setting; did you mean "
                "learning_rate?",
            ),
        ],
    )
    def test_that_is_wrong_is_refused_by_the_name_of_the_variable(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
    ):
        monkeypatch.setenv(variable, value)
        assert refused().startswith(message)

    @pytest.mark.parametrize(
        ("variable", "meant"),
        [
            ("ROLLCAST_N_ACTOR", "ROLLCAST_N_ACTORS"),
            ("rollcast_seeds", "ROLLCAST_SEED"),
            ("ROLLCAST_NETWORK_LEARNING_RATE", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_NETWRK__LEARNING_RATE", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_LEARNING_RATE", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_LR", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_LEARNIG_RATE", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_LEARNINGRATE", "ROLLCAST_NETWORK__LEARNING_RATE"),
            ("ROLLCAST_ENV__KWARGS", "ROLLCAST_ENV_KWARGS"),
        ],
    )
    def test_that_is_misspelt_is_refused_with_the_one_that_is_meant(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
    ):
        monkeypatch.setenv(variable, "3")
        assert refused() == (f"{variable.upper()}: there is no such setting; did you mean {meant}? Correct or unset it")

    @pytest.mark.parametrize(
        ("variable", "meant"),
        [
            ("ROLLCAST_ENV", "ROLLCAST_ENV_KWARGS"),
            ("rollcast_deter", "ROLLCAST_DETERMINISTIC"),
            ("ROLLCAST_NUM_STOP", "ROLLCAST_STOP_RETURN"),
        ],
    )
    def test_that_is_the_beginning_of_one_is_a_warning(self, monkeypatch, caplog, variable: str, meant: str):
        monkeypatch.setenv(variable, "3")
        assert read().model_dump() == Settings().model_dump()
        assert caplog.messages == [f"{variable.upper()} is not a setting, and is ignored; did you mean {meant}?"]

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("ROLLCAST_N_ACTOR", ""),
            ("ROLLCAST_LEARNER_ADDRESS", "somewhere:1"),
            ("ROLLCAST_LEARNER_PORT", "tcp://10.0.0.1:50051"),  # by Kubernetes, for a service
            ("ROLLCAST_HOME_DIR", "/home/me"),
            ("ROLLCAST_N_RANKS", "2"),
        ],
    )
    def test_that_is_empty_or_of_something_else_is_left_alone(self, monkeypatch, caplog, variable: str, value: str):
        monkeypatch.setenv(variable, value)
        assert read().model_dump() == Settings().model_dump()
        assert not caplog.messages


def test_kwargs_name_each_value_once(monkeypatch: pytest.MonkeyPatch):
    twice = '{"deep": {"er": 1, "er": 2}}'
    monkeypatch.setenv("ROLLCAST_ENV_KWARGS", twice)
    assert "not JSON (the name 'er' is given twice)" in refused()
    assert "not JSON (the name 'er' is given twice)" in refused("--env-kwargs", twice)


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
