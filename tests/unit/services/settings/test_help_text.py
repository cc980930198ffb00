"""The help of a command."""

import re

import pytest

from tests.unit.services.settings.example_settings import Positional, read


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
