from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from rollcast.services.settings.help_text import HelpScope
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.settings import ProcessSettings
from rollcast.services.settings.suggestions import did_you_mean
from tests.unit.services.settings.example_settings import Network, Positional, Settings, read, refused


class Choosing(ProcessSettings):
    """Uses one of its groups."""

    algorithm: Literal["dqn", "sac"] = Field("dqn", description="Which.")
    dqn: Network = Field(default_factory=Network, description="Of the one.")
    sac: Network = Field(default_factory=Network, description="Of the other.")

    @classmethod
    def help_scope(cls, origins: Origins) -> HelpScope:
        return HelpScope(hidden=("sac",) if origins.value_of("algorithm") != "sac" else ("dqn",))


class TestCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--n-actor", "1"), "--n-actor: there is no such option; did you mean --n-actors?"),
            (("--n_actors=1",), "--n_actors: there is no such option; did you mean --n-actors?"),
            (("--lr", "1"), "--lr: there is no such option; did you mean --network.learning-rate?"),
            (("--network.gamma", "1"), "--network.gamma: there is no such option; --help-all lists all"),
            (("--no-determinstic",), "--no-determinstic: there is no such option; did you mean --no-deterministic?"),
            (("--confg", "x"), "--confg: there is no such option; did you mean --config?"),
            (("-x",), "-x: there is no such option; --help-all lists all"),
            (("3",), "'3' is an extra argument; expected options"),
            (
                ("--", "--seed", "3"),
                "--: nothing after it is read as an option; expected options alone; leave out the --",
            ),
            (("--seed",), "--seed: no value is given; expected one; write --seed VALUE, or --seed=VALUE if it begins"),
            (("--deterministic=1",), "--deterministic: a value is given; expected none; write --deterministic"),
            (("--env-kwargs", "{"), "--env-kwargs: '{' is not valid: not JSON (Expecting property name"),
            (("--seed", "-1"), "--seed: '-1' is not valid: expected at least 0"),
            (("--seed", "x"), "--seed: 'x' is not valid: expected a whole number, such as 5000, 1e6 or 20M"),
            (("--seed", "2.5"), "--seed: '2.5' is not valid: expected a whole number, such as"),
            (("--stop-return", "x"), "--stop-return: 'x' is not valid: expected a number, such as"),
            (("--sizes", "3,x"), "--sizes: 'x' is not valid: expected a whole number, such as"),
            (
                ("--network.activation", "Relu"),
                "--network.activation: 'Relu' is not valid: expected 'tanh' or 'relu'; did you mean relu?",
            ),
        ],
    )
    def test_that_is_wrong_is_refused_with_what_may_be_meant(self, arguments: tuple[str, ...], message: str):
        assert refused(*arguments).startswith(message)

    def test_leaves_nothing_to_the_next(self, tmp_path: Path):
        (tmp_path / "run.yaml").write_text("n_actors: 7\n")
        first = read("--config", str(tmp_path / "run.yaml"), "--seed=3", "--deterministic", "--network.activation=relu")
        assert (first.n_actors, first.seed, first.deterministic, first.network.activation) == (7, 3, True, "relu")
        assert Settings().n_actors == 2
        assert read("--sizes=3") == Settings(sizes=(3,))
        refused("--seed=x", "--n-actors=9")
        assert read() == Settings()
        assert "rollcast try RUN_DIR" in refused(settings=Positional)
        for chosen in ("sac", "dqn", "sac"):
            told = refused("--algorithm", chosen, "--learnig-rate", "1", settings=Choosing)
            assert told.endswith(f"did you mean --{chosen}.learning-rate?")

    @pytest.mark.parametrize(
        ("arguments", "option"),
        [
            (("--seed", "1", "--seed=2"), "--seed"),
            (("--seed", "1", "--deterministic", "--no-deterministic", "--seed", "2"), "--deterministic"),
            (
                ("--seed=1", "--network.activation=relu", "--network.activation=tanh", "--seed=2"),
                "--network.activation",
            ),
        ],
    )
    def test_says_that_the_last_of_several_values_counts(
        self, arguments: tuple[str, ...], option: str, caplog: pytest.LogCaptureFixture
    ):
        settings = read(*arguments)
        assert (settings.seed, settings.deterministic, settings.network.activation) == (2, False, "tanh")
        assert f"{option} is given 2 times, and only the last one counts; expected it once" in caplog.messages

    def test_takes_a_list_from_several_options(self, caplog: pytest.LogCaptureFixture):
        assert read("--sizes", "3,4", "--sizes", "5", "--seed", "1").sizes == (3, 4, 5)
        assert not caplog.messages

    def test_leaves_nothing_to_another_thread(self):
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda seed: read(f"--seed={seed}").seed, range(80))) == list(range(80))

    def test_names_every_option_that_does_not_exist(self):
        assert refused("--n-actor", "1", "--foo").count("there is no such option") == 2

    @pytest.mark.parametrize("value", ["-200", "-1e3", "-.5", "-2.5E-1"])
    def test_takes_negative_numbers_of_every_spelling(self, value: str):
        assert read("--stop-return", value).stop_return == float(value)

    @pytest.mark.parametrize(
        ("value", "number"),
        [
            *(
                ("1e6", 10**6),
                ("1.0e6", 10**6),
                ("2.5E+3", 2500),
                ("20M", 20 * 10**6),
                ("0.5k", 500),
                ("8g", 8 * 10**9),
            ),
            *(("1_000", 1000), ("123456789012345k", 123456789012345000)),
        ],
    )
    def test_takes_whole_numbers_as_people_write_them(self, value: str, number: int):
        assert read("--n-actors", value).n_actors == number

    @pytest.mark.parametrize("value", ["2.5", "1e-3", "1e999999999", "20 MB", "M", "0x10", "1.2345k", str(2**63)])
    def test_refuses_what_is_no_whole_number(self, value: str):
        assert refused("--n-actors", value) == (
            f"--n-actors: {value!r} is not valid: expected a whole number, such as 5000, 1e6 or 20M"
        )

    def test_says_what_is_missing(self):
        assert refused(settings=Positional) == "RUN_DIR is not given; expected rollcast try RUN_DIR; add it"


OPTIONS = [
    *("--n-actors", "--max-actors", "--envs-per-actor", "--double", "--no-double", "--total-steps"),
    *("--impala.learning-rate", "--impala.learning-rate-schedule", "--sac.policy-learning-rate"),
]


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("--n-actor", "did you mean --n-actors?"),
        ("--tot", "did you mean --total-steps?"),
        ("--n-envs", "did you mean --envs-per-actor?"),
        ("--n_actors", "did you mean --n-actors?"),
        ("--learning-rate", "did you mean --impala.learning-rate, or --sac.policy-learning-rate?"),
        ("--sac.learning-rate", "did you mean --sac.policy-learning-rate?"),
        ("--impala.learnig-rate", "did you mean --impala.learning-rate?"),
        ("--learnig-rate", "did you mean --impala.learning-rate?"),
        ("--impala.double", "did you mean --double?"),
        ("--no-duble", "did you mean --no-double?"),
        ("--lr", "did you mean --impala.learning-rate, or --sac.policy-learning-rate?"),
        ("--sac.lr", "did you mean --sac.policy-learning-rate?"),
        ("--t", ""),
        ("--gravity", ""),
        ("", ""),
    ],
)
def test_guesses_the_name_that_is_like_it(name: str, guess: str):
    assert did_you_mean(name, OPTIONS) == guess


def test_guesses_three_at_most():
    assert did_you_mean("--rate", [f"--{group}.rate" for group in "abcde"]) == (
        "did you mean --a.rate, or --b.rate, or --c.rate?"
    )


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("--sac.lr", "did you mean --sac.policy-learning-rate, or --sac.critic-learning-rate?"),
        ("--replay.spi", "did you mean --replay.samples-per-insert?"),
    ],
)
def test_initials_go_before_a_similar_spelling(name: str, guess: str):
    options = [
        *("--sac", "--sac.tau", "--sac.policy-learning-rate", "--sac.critic-learning-rate"),
        *("--replay.sampler", "--replay.samples-per-insert", "--ppo.learning-rate"),
    ]
    assert did_you_mean(name, options) == guess


def test_prefers_the_group_that_is_named_and_then_what_applies():
    options = ["--sac.learning-rate", "--dqn.learning-rate", "--dqn.double"]
    applicable = ["--sac.learning-rate"]
    assert did_you_mean("--learning-rate", options, applicable) == "did you mean --sac.learning-rate?"
    assert did_you_mean("--dqn.rate", options, applicable) == "did you mean --dqn.learning-rate?"
    assert did_you_mean("--sac.double", options, applicable) == "did you mean --dqn.double?"
