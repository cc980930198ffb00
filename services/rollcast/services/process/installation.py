"""How this installation is used from a shell: the path that starts its programs, and how to install what it lacks."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

# Where the sources lie side by side with the project's file: a checkout, or an editable installation of one.
_SOURCES: Final = Path(__file__).resolve().parents[4]


def typed(program: str) -> str:
    """Returns what to type for a program of this installation: its name where that finds it, else its path.

    Args:
        program: Its name, such as `rollcast` or `pip`.
    """
    own = Path(sys.executable).parent / program
    found = shutil.which(program)
    if found is not None and own.exists() and Path(found).samefile(own):
        return program
    if own.exists():
        relative = os.path.relpath(own)
        return shlex.quote(str(own) if relative.startswith("..") else relative)
    module = {"rollcast": "rollcast.learner"}.get(program, program)
    return f"{shlex.quote(sys.executable)} -m {module}"


def install_extra(extra: str) -> str:
    """Returns the command that installs an extra of this project, for a checkout or for an installed package.

    Args:
        extra: Its name in pyproject.toml, such as `video`.
    """
    if not (_SOURCES / "pyproject.toml").is_file():
        return f"{typed('pip')} install 'rollcast[{extra}]'"
    where = "." if Path.cwd() == _SOURCES else str(_SOURCES)
    return f"{typed('pip')} install -e '{where}[{extra}]'"
