"""A command imports no library that it does not need: each takes 10 to 1,000 ms of the processor at every start."""

import subprocess
import sys

import pytest

LARGE = {"torch", "numpy", "gymnasium", "grpc", "google", "prometheus_client", "rich", "tensorboard", "safetensors"}


def libraries_after(program: str) -> set[str]:
    """Returns the packages that a program has imported, without Python's own and rollcast."""
    program += "\nprint(*{name.partition('.')[0] for name in sys.modules if not name.startswith('__')})"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{program}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split()) - sys.stdlib_module_names - {"rollcast", "_distutils_hack"}


def test_what_needs_no_settings_imports_no_library():
    program = "from rollcast.tools import cli\nfor one in ('--help', '--version', 'trian'): cli.main([one])"
    assert libraries_after(program) == set()


def test_help_and_settings_of_every_command_import_no_large_library():
    program = "from rollcast.tools.commands import COMMANDS\nfor command in COMMANDS.values(): command.settings()"
    assert not libraries_after(program) & LARGE


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("completion", "ls", "recipes"), set()),
        (("compare", "track"), {"numpy"}),
        (("actor", "relay", "scaler", "status"), {"numpy", "gymnasium", "grpc", "google", "safetensors"}),
        (("top",), {"numpy", "gymnasium", "grpc", "google", "safetensors", "rich"}),
    ],
)
def test_commands_import_only_the_large_libraries_that_they_need(names: tuple[str, ...], allowed: set[str]):
    program = f"from rollcast.tools.commands import COMMANDS\nfor name in {names}: COMMANDS[name].function()"
    assert libraries_after(program) & LARGE <= allowed


def test_acting_needs_numpy_and_gymnasium_alone():
    modules = ("environments.make", "vector.make", "policies.make", "workers.flat", "statistics.epoch_aggregator")
    program = "\n".join(f"import rollcast.actor.{module}" for module in modules)
    assert libraries_after(program) & LARGE == {"numpy", "gymnasium"}
