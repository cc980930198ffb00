"""The package as it is shipped: its wheel, and an environment of its own to install it into."""

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT


def build_wheel(directory: Path) -> Path:
    """Builds the wheel from this tree, without asking a registry.

    Args:
        directory: Where it goes.

    Returns:
        The file.
    """
    # hatchling itself rather than `pip wheel`, which would ask a registry for hatchling
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Makes a virtual environment and installs a wheel without extras, at the versions of constraints.txt.

    Args:
        wheel: The file.
        directory: Where the environment goes.

    Returns:
        The folder of its programs.
    """
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, capture_output=True, timeout=120)
    programs = directory / "bin"
    command = [programs / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return programs


def bare_environment() -> dict[str, str]:
    """This process's environment without Python's search path and rollcast's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROLLCAST_", "PYTHONPATH"))}
