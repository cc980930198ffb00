"""Returns shell commands for this installation: commands that run its programs or install an extra."""

import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rollcast.services.errors import ConfigurationError

# The extras of pyproject.toml, and the modules that each brings.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("torch",),
    "learner": ("torch", "rich", "tensorboard", "grpc_reflection", "cryptography"),
    "top": ("rich",),
    "docker": ("docker",),
    "pettingzoo": ("pettingzoo",),
    "box2d": ("Box2D",),
    "mujoco": ("mujoco",),
    "atari": ("ale_py", "cv2"),
    "websockets": ("websockets",),
    "dashboard": ("nicegui", "fastapi", "uvicorn"),
    "plot": ("matplotlib",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxruntime"),
    "video": ("moviepy", "pygame"),
}

# The folder of pyproject.toml, in a checkout or an editable installation of one.
_SOURCES: Final = Path(__file__).resolve().parents[4]

# A file in this project's images, with the command that builds an image with a further extra.
_IMAGE_COMMAND: Final = "install-extra"


def typed(program: str) -> str:
    """Returns the command for a program of this installation: the name if PATH has the program, otherwise the path.

    Args:
        program: The program's name, such as `rollcast` or `pip`.
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


def typed_again(*names: str) -> str:
    """Returns the command line for another command of rollcast that imports the same names as this process.

    This is `typed("rollcast")`, preceded by the `PYTHONPATH` of this process if a name needs an import.

    Args:
        names: The environment, the network or the algorithm: `package.module:name`, or a name without a module.
    """
    path = os.environ.get("PYTHONPATH", "")
    imports = any(":" in name for name in names)
    return (f"PYTHONPATH={shlex.quote(path)} " if path and imports else "") + typed("rollcast")


def require_extra(extra: str, purpose: str, *modules: str) -> None:
    """Checks that an extra of this project is installed. Imports nothing.

    Args:
        extra: The extra's name in pyproject.toml, such as `learner`.
        purpose: The feature that needs the extra; the subject of the message, such as `rollcast train`.
        modules: The modules to check; by default all modules of the extra.

    Raises:
        ConfigurationError: A module is missing. The message contains the command that installs it.
    """
    missing = [module for module in modules or EXTRAS[extra] if not is_installed(module)]
    if missing:
        raise ConfigurationError(missing_message(extra, purpose, missing))


def is_installed(module: str) -> bool:
    """Returns whether a top-level module can be imported. Imports nothing."""
    spec = importlib.util.find_spec(module)
    # a folder with the same name, such as docker/, has no origin
    return spec is not None and spec.origin is not None


def missing_message(extra: str, purpose: str, modules: Sequence[str]) -> str:
    """Returns a message about an extra that is not installed.

    Args:
        extra: The extra's name in pyproject.toml, such as `learner`.
        purpose: The feature that needs the extra; the subject of the message, such as `rollcast train`.
        modules: The missing modules.
    """
    return (
        f"{purpose} needs {', '.join(modules)}, which this Python does not have; expected the extra {extra!r}; "
        f"install it: {install_extra(extra)}"
    )


def extra_with(module: str) -> str | None:
    """Returns the smallest extra that contains a module; None if no extra contains it.

    Args:
        module: The name of a top-level module, such as `pygame`.
    """
    found = [extra for extra, modules in EXTRAS.items() if module in modules]
    return min(found, key=lambda extra: len(EXTRAS[extra]), default=None)


def install_extra(extra: str) -> str:
    """Returns the command that installs an extra, for a checkout, an installed package or an image of this project.

    Args:
        extra: The extra's name in pyproject.toml, such as `video`.
    """
    if (image := Path(sys.prefix) / _IMAGE_COMMAND).is_file():
        return image.read_text(encoding="utf-8").strip().replace("{extra}", extra)
    if (_SOURCES / "pyproject.toml").is_file():
        where = "." if Path.cwd() == _SOURCES else str(_SOURCES)
        return f"{typed('pip')} install -e {shlex.quote(f'{where}[{extra}]')}"
    return f"{typed('pip')} install {shlex.quote(f'rollcast[{extra}]{_origin()}')}"


def _origin() -> str:
    """Returns ` @ URL` for a package that was installed from a file or a repository; empty for one from an index."""
    # Imported here, because it takes as long as all other imports of `rollcast --help`.
    from importlib import metadata

    try:
        origin = json.loads(metadata.distribution("rollcast").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return ""
    url, version_control = origin.get("url"), origin.get("vcs_info", {}).get("vcs")
    if url is None:
        return ""
    return f" @ {version_control}+{url}" if version_control else f" @ {url}"
