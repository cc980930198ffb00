import re

import pytest
from pydantic_settings import CliSettingsSource

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.command_line import CommandLineParser
from rollcast.services.settings.options import options_of, variable_name
from rollcast.services.settings.settings import ProcessSettings
from rollcast.tools.commands import COMMANDS
from tests.documents import ROOT

# Kubernetes gives these to every pod, for each service.
_OF_A_SERVICE = ("PORT", "PORT_50051_TCP", "PORT_50051_TCP_ADDR", "PORT_50051_TCP_PORT", "SERVICE_HOST", "SERVICE_PORT")


@pytest.fixture(params=[command.settings() for command in COMMANDS.values()], ids=COMMANDS)
def process(request: pytest.FixtureRequest) -> type[ProcessSettings]:
    return request.param


class TestOptions:
    def test_are_those_that_the_parser_takes(self, process: type[ProcessSettings]):
        parser = CommandLineParser([])
        CliSettingsSource(process, cli_parse_args=False, root_parser=parser)
        # a whole group as JSON, `--impala {...}`, is for programs, and not in the help
        parsed = {name for action in parser._actions for name in action.option_strings if action.nargs != "?"}
        assert {spelling for option in options_of(process) for spelling in option.spellings} == parsed

    def test_say_what_happens_without_them(self, process: type[ProcessSettings]):
        silent = {
            option.name
            for option in options_of(process)
            if option.default is None and not option.positional and "Default:" not in option.description
        }
        assert silent <= {"--output"}, "required options alone have no default"

    def test_are_described_in_sentences(self, process: type[ProcessSettings]):
        for option in options_of(process):
            assert option.description.endswith("."), option.name
            assert not re.match(r"(Who|What|How|Whether|Where|Which|When|That)\b", option.description), option.name

    def test_that_matter_first_exist_and_are_few(self, process: type[ProcessSettings]):
        names = [".".join(option.path) for option in options_of(process)]
        assert set(process.first_options) <= set(names)
        assert len(names) <= 16 or process.first_options, "a long help begins with what matters"


def _all_variables() -> set[str]:
    """Returns the variables of every process, of the deployments, and those that Kubernetes adds."""
    settings = {
        variable_name(option.path) for command in COMMANDS.values() for option in options_of(command.settings())
    }
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    files += [ROOT / "Makefile", ROOT / "docker-compose.yml"]
    written = {name for file in files for name in re.findall(r"ROLLCAST_\w*[A-Z]\b", file.read_text("utf-8"))}
    services = ("LEARNER", "RELAY", "DASHBOARD", "SCALER", "ACTOR", "METRICS")
    return settings | written | {f"ROLLCAST_{service}_{name}" for service in services for name in _OF_A_SERVICE}


def _complaint(process: type[ProcessSettings]) -> str:
    try:
        process.from_command_line("rollcast try", [])
    except ConfigurationError as error:  # several need an argument
        return str(error)
    return ""


def test_take_no_variable_of_another_process_for_a_misspelt_one(
    process: type[ProcessSettings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    for variable in _all_variables():
        if variable.removeprefix("ROLLCAST_").lower().partition("__")[0] not in process.model_fields:
            monkeypatch.setenv(variable, "x")
    assert "there is no such setting" not in _complaint(process)
    assert not caplog.messages
