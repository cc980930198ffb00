"""The command line, and its errors."""

import pytest

from tests.unit.services.settings.example_settings import Positional, read, refused


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
