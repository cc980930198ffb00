"""Imports a user's factories by name: `package.module:name`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rollcast.services.errors import ConfigurationError


def split_entry_point(entry_point: str) -> tuple[str, str]:
    """Splits `package.module:name` into its two halves.

    Args:
        entry_point: The name.

    Returns:
        The names of the module and of the attribute.

    Raises:
        ConfigurationError: If `entry_point` does not have this form.
    """
    module_name, colon, attribute = entry_point.partition(":")
    if not colon or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(
            f"the entry point {entry_point!r} is malformed; expected 'package.module:name'; "
            "write the module as in an import statement, a colon, and the name of the factory in it"
        )
    return module_name, attribute


def import_module(module_name: str) -> ModuleType:
    """Imports a module of the user's: that of the current folder if there is one, as `python -m` does.

    The current folder is only searched for a name that stands in it, so files beside a run shadow nothing.

    Args:
        module_name: Its name, as in an import statement.

    Raises:
        Exception: What the import raises.
    """
    top = module_name.partition(".")[0]
    stands_here = top.isidentifier() and (Path(f"{top}.py").is_file() or Path(top).is_dir())
    if stands_here and top not in sys.modules and not sys.flags.safe_path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(module_name)


def missing_module_advice(module: str) -> str:
    """Returns advice for a module of the user's that is not found; it names no package, which may be a stranger's."""
    return (
        f"there is no {module}.py in this folder: if it is your own, go to its folder or add that to PYTHONPATH, else "
        "install the package that has it"
    )


def load_entry_point(entry_point: str) -> Callable[..., Any]:
    """Imports the callable that an entry point names.

    Args:
        entry_point: `package.module:name`; `name` may be dotted, as in `package.module:Class.method`.

    Returns:
        The callable of that name.

    Raises:
        ConfigurationError: If the name is malformed, the module or the attribute is missing, or it is not callable.
        Exception: An exception that the module raised while it was imported.
    """
    module_name, attribute = split_entry_point(entry_point)
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the entry point {entry_point!r} cannot be loaded: there is no module {error.name!r}; expected an "
            f"importable module; {missing_module_advice(str(error.name).partition('.')[0])}"
        ) from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            raise ConfigurationError(
                f"the entry point {entry_point!r} cannot be loaded: {module_name!r} has no attribute {attribute!r}; "
                f"expected one of its callables: {_callables_of(value)}; correct the name after the colon"
            )
        value = getattr(value, name)
    if not callable(value):
        raise ConfigurationError(
            f"the entry point {entry_point!r} is a {type(value).__name__}; expected a callable; "
            "name a function or a class"
        )
    loaded: Callable[..., Any] = value
    return loaded


def _callables_of(owner: object) -> str:
    names = [name for name in vars(owner) if not name.startswith("_") and callable(getattr(owner, name))]
    return ", ".join(names[:10]) or "(it has none)"
