import re

import pytest

from rollcast.services.settings.help_text import HelpScope, help_text
from tests.unit.services.settings.example_settings import Positional, Settings, read


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

    def test_shows_one_default(self):
        def shown(**defaults: float) -> str:
            scope = HelpScope(defaults=defaults)
            return help_text("rollcast try", Settings, scope, ["stop_return"], everything=False, width=120)

        assert "When to stop. Default: never.\n" in shown()
        assert "When to stop. (default: 9.5)\n" in shown(stop_return=9.5)

    def test_fits_its_width(self, shown):
        assert max(map(len, shown("--help-all").splitlines())) <= 120
