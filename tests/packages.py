"""The package as it is shipped: its wheel, and an environment of its own to install it into."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.processes import ROOT


def build(kind: Literal["wheel", "sdist"], directory: Path, sources: Path = ROOT) -> Path:
    """Builds the wheel or the source distribution, without asking a registry.

    Args:
        kind: The one to build.
        directory: An empty folder for it.
        sources: The tree to build it from.

    Returns:
        The file.
    """
    # hatchling itself rather than `pip wheel`, which would ask a registry for hatchling
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=sources, check=True, capture_output=True, timeout=240)
    (built,) = directory.iterdir()
    return built


def install(wheel: Path, directory: Path) -> Path:
    """Makes a virtual environment and installs a wheel without extras, at the versions of constraints.txt.

    Args:
        wheel: The file.
        directory: Where the environment goes.

    Returns:
        The folder of its programs.
    """
    # this environment's pip installs into it, a pip of its own as well, and nothing is compiled that no test imports:
    # a third of the work
    venv: list[str | Path] = [sys.executable, "-m", "venv", "--without-pip", directory]
    subprocess.run(venv, check=True, capture_output=True, timeout=240)
    programs = directory / "bin"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", programs / "python"]
    command = [*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", "pip", wheel]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return programs


def bare_environment() -> dict[str, str]:
    """This process's environment without Python's search path and rollcast's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROLLCAST_", "PYTHONPATH"))}
