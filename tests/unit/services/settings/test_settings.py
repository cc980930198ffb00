"""Settings from the command line, the environment and a file, and what is said of those that are wrong."""

import json
import math
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliPositionalArg

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.settings import EntryPointKwargs, ProcessSettings


class Network(BaseModel):
    """A nested group."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(1e-3, description="Step size.")
    activation: Literal["tanh", "relu"] = Field("tanh", description="Its function.")


class Settings(ProcessSettings):
    """Does something."""

    first_options: ClassVar = ("seed", "network.learning_rate")

    seed: Annotated[int, Field(ge=0)] = Field(0, description="Where randomness comes from.")
    n_actors: int = Field(2, description="How many.")
    stop_return: float | None = Field(None, description="When to stop.")
    sizes: tuple[int, ...] = Field((64, 64), description="Sizes.")
    env_kwargs: EntryPointKwargs = Field(default_factory=dict, description="Arguments.")
    deterministic: bool = Field(False, description="The same again.")
    network: Network = Field(default_factory=Network, description="The network.")


class Positional(ProcessSettings):
    """Looks at a folder."""

    run_dir: CliPositionalArg[Path] = Field(description="The folder.")


def read(*arguments: str) -> Settings:
    return Settings.from_command_line("rollcast try", arguments)


def refused(*arguments: str, settings: type[ProcessSettings] = Settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings.from_command_line("rollcast try", arguments)
    return str(caught.value)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


class TestFile:
    def test_is_read_below_the_environment_and_the_command_line(self, config: Path, monkeypatch: pytest.MonkeyPatch):
        config.write_text("seed: 1\nn_actors: 1\nsizes: [1, 2]\nnetwork: {learning_rate: 0.5}\n")
        monkeypatch.setenv("ROLLCAST_N_ACTORS", "5")
        monkeypatch.setenv("ROLLCAST_SEED", "5")
        settings = read("--config", str(config), "--seed", "7")
        assert (settings.seed, settings.n_actors, settings.sizes) == (7, 5, (1, 2))
        assert settings.network == Network(learning_rate=0.5)
        assert read("--seed", "7").sizes == (64, 64), "a file stays with the call that named it"

    def test_may_hold_nothing_but_comments(self, config: Path):
        config.write_text("# seed: 3\n")
        assert read(f"--config={config}").model_dump() == read().model_dump()

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"seed: 1\nsizes: [1\nn_actors: 2\n", "line 3: did not find expected ',' or ']'"),
            (b"seed: 1\n\tn_actors: 2\n", "line 2: found a tab character"),
            (b"seed: 1\nnetwork: \xff\xfe\n", "line 2: byte 0xff is not UTF-8"),
            (b"seed: 1\nn_actors: !!python/name:os.system\n", "line 2 has the tag 'tag:yaml.org,2002:python/name:"),
            (b"seed: &one 1\nn_actors: *one\n", "line 1 has the anchor or alias 'one'"),
            (b"- seed\n", " holds a list, not a mapping of names to values"),
            (b"1: 2\n", " holds a name that is not text, not a mapping"),
            (b"seed: 2026-13-01\n", "month must be in 1..12"),
        ],
    )
    def test_that_is_no_yaml_of_plain_values_is_refused_with_its_line(self, config: Path, content: bytes, problem: str):
        config.write_bytes(content)
        message = refused("--config", str(config))
        assert message.startswith(f"{str(config)!r}")
        assert problem in message
        assert "expected a YAML file of settings for --config; correct the file" in message
        assert "\n" not in message

    def test_that_cannot_be_read_is_refused_with_the_reason(self, tmp_path: Path):
        assert "cannot be read: Is a directory" in refused("--config", str(tmp_path))
        assert "cannot be read: No such file or directory" in refused("--config", str(tmp_path / "none.yaml"))
        assert "cannot be read: Input/output error" in refused("--config", "/proc/self/mem")

    def test_that_is_not_named_or_named_twice_is_refused(self):
        assert "no file is given" in refused("--config")
        assert "no file is given" in refused("--config=")
        assert "2 files are given, a.yaml, b.yaml" in refused("--config", "a.yaml", "--config=b.yaml")

    def test_with_a_name_that_does_not_exist_is_refused_with_the_one_that_may_be_meant(self, config: Path):
        config.write_text("n_actor: 3\nnetwork: {learnig_rate: 1}\nseed: -1\n")
        assert refused("--config", str(config)).splitlines() == [
            f"--seed: -1 is not valid (from {str(config)!r}): Input should be greater than or equal to 0",
            f"network.learnig_rate (from {str(config)!r}): there is no such setting; did you mean learning_rate?",
            f"n_actor (from {str(config)!r}): there is no such setting; did you mean n_actors?",
        ]


class TestEnvironment:
    def test_gives_lists_with_commas_or_as_json(self, monkeypatch: pytest.MonkeyPatch):
        for value in ("32,16", "[32, 16]"):
            monkeypatch.setenv("ROLLCAST_SIZES", value)
            assert read().sizes == (32, 16)

    @pytest.mark.parametrize(
        ("variable", "value", "message"),
        [
            ("ROLLCAST_ENV_KWARGS", "{", "--env-kwargs: '{' is not valid (from ROLLCAST_ENV_KWARGS): not JSON"),
            ("ROLLCAST_SIZES", "3,x", "--sizes.1: 'x' is not valid (from ROLLCAST_SIZES): "),
            ("ROLLCAST_SEED", "-1", "--seed: '-1' is not valid (from ROLLCAST_SEED): "),
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

    def test_of_another_process_is_left_alone(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("ROLLCAST_LEARNER_ADDRESS", "somewhere:1")
        assert read().model_dump() == Settings().model_dump()


class TestCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--n-actor", "1"), "--n-actor: there is no such option; did you mean --n-actors?"),
            (("--n_actors=1",), "--n_actors: there is no such option; did you mean --n-actors?"),
            (
                ("--learning-rate", "1"),
                "--learning-rate: there is no such option; did you mean --network.learning-rate?",
            ),
            (("--learnig-rate", "1"), "--learnig-rate: there is no such option; did you mean --network.learning-rate?"),
            (("--network.lr", "1"), "--network.lr: there is no such option; --help-all lists all"),
            (("--no-determinstic",), "--no-determinstic: there is no such option; did you mean --no-deterministic?"),
            (("--confg", "x"), "--confg: there is no such option; did you mean --config?"),
            (("-x",), "-x: there is no such option; --help-all lists all"),
            (("3",), "'3' is one argument too many; expected options"),
            (("--seed",), "--seed: no value is given; expected one; write --seed VALUE, or --seed=VALUE if it begins"),
            (("--deterministic=1",), "--deterministic: ignored explicit argument '1'"),
            (("--env-kwargs", "{"), "--env-kwargs: its value cannot be read (Missing end delimiter"),
            (("--seed", "-1"), "--seed: '-1' is not valid: Input should be greater than or equal to 0"),
            (("--network.activation", "gelu"), "--network.activation: 'gelu' is not valid: Input should be 'tanh' or"),
        ],
    )
    def test_that_is_wrong_is_refused_with_what_may_be_meant(self, arguments: tuple[str, ...], message: str):
        assert refused(*arguments).startswith(message)

    def test_names_every_option_that_does_not_exist(self):
        assert refused("--n-actor", "1", "--foo").count("there is no such option") == 2

    @pytest.mark.parametrize("value", ["-200", "-1e3", "-.5", "-2.5E-1"])
    def test_takes_negative_numbers_of_every_spelling(self, value: str):
        assert read("--stop-return", value).stop_return == float(value)

    @pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
    def test_refuses_what_is_no_number(self, value: str):
        assert "Input should be a finite number" in refused(f"--stop-return={value}")
        assert "Input should be a finite number" in refused(f"--network.learning-rate={value}")

    def test_says_what_is_missing(self):
        assert refused(settings=Positional) == "RUN_DIR is not given; expected: rollcast try RUN_DIR; add it"


class TestHelp:
    @pytest.fixture
    def shown(self, capsys: pytest.CaptureFixture[str]):
        def show(*arguments: str) -> str:
            with pytest.raises(SystemExit) as ended:
                read(*arguments)
            assert ended.value.code == 0
            return capsys.readouterr().out

        return show

    def test_shows_the_options_that_matter_first_and_how_to_see_the_rest(self, shown):
        first = shown("--help")
        assert re.findall(r"^  (--[\w.-]+)", first, re.M) == [
            "--seed", "--network.learning-rate", "--help-all", "--config"
        ]  # fmt: skip
        assert "Show the other 6 options too, and exit." in first
        assert "Step size. (default: 0.001)" in first

    def test_shows_every_option_when_asked_for_all(self, shown):
        everything = re.findall(r"^  (--[\w.-]+)", shown("--help-all"), re.M)
        assert everything[:2] == ["--seed", "--network.learning-rate"]
        assert set(everything) == {
            *("--seed", "--n-actors", "--stop-return", "--sizes", "--env-kwargs", "--deterministic"),
            *("--network.learning-rate", "--network.activation", "--config"),
        }

    def test_shows_all_where_nothing_matters_first(self, capsys: pytest.CaptureFixture[str]):
        with pytest.raises(SystemExit):
            Positional.from_command_line("rollcast try", ["-h"])
        text = capsys.readouterr().out
        assert text.startswith("usage: rollcast try [options] RUN_DIR\n")
        assert "--help-all" not in text

    def test_fits_its_width(self, shown):
        assert max(map(len, shown("--help-all").splitlines())) <= 120


def test_kwargs_are_an_object_wherever_they_come_from(config: Path, monkeypatch: pytest.MonkeyPatch):
    kwargs = {"gravity": 9.8, "deep": {"er": [1, 2]}}
    assert read("--env-kwargs", json.dumps(kwargs)).env_kwargs == kwargs
    config.write_text(f"env_kwargs: {json.dumps(kwargs)}\n")
    assert read("--config", str(config)).env_kwargs == kwargs
    monkeypatch.setenv("ROLLCAST_ENV_KWARGS", json.dumps(kwargs))
    assert read().env_kwargs == kwargs
    assert math.isclose(read().env_kwargs["gravity"], 9.8)
