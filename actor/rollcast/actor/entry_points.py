"""Imports a user's factories by name: `package.module:name`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rollcast.services.errors import ConfigurationError


def split_entry_point(entry_point: str) -> tuple[str, str]:
    """Splits `package.module:name` at the colon.

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
    """Imports a user's module, first from the current folder, as `python -m` does.

    The current folder is searched only for this module, so its files shadow no other module.

    Args:
        module_name: The module's name, as in an import statement.

    Raises:
        Exception: The exception of the import.
    """
    top = module_name.partition(".")[0]
    stands_here = top.isidentifier() and (Path(f"{top}.py").is_file() or Path(top).is_dir())
    if stands_here and top not in sys.modules and not sys.flags.safe_path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(module_name)


def missing_module_advice(module: str) -> str:
    """Returns advice for a missing module, without a package: a package of that name may be unrelated."""
    return (
        f"there is no {module}.py in this folder: if the module is yours, go to its folder, or add its folder to "
        "PYTHONPATH; otherwise install the package that contains the module"
    )


def load_entry_point(entry_point: str) -> Callable[..., Any]:
    """Imports the callable that an entry point names.

    Args:
        entry_point: `package.module:name`; `name` may be dotted, as in `package.module:Class.method`.

    Returns:
        The callable of that name.

    Raises:
        ConfigurationError: If the name is malformed, the module or the attribute is missing, or the attribute is not
            callable.
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
        if not hasattr(value, name) and _is_folder(value):
            raise ConfigurationError(
                f"the entry point {entry_point!r} cannot be loaded: {module_name!r} is a folder, "
                f"{str(next(iter(value.__path__)))!r}; expected a module; "
                f"{missing_module_advice(module_name.replace('.', '/'))}"
            )
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


def _is_folder(value: object) -> bool:
    """Returns whether Python imported a folder as a package although the folder has no `__init__.py`."""
    return hasattr(value, "__path__") and getattr(value, "__file__", None) is None


def _callables_of(owner: object) -> str:
    names = [name for name in vars(owner) if not name.startswith("_") and callable(getattr(owner, name))]
    return ", ".join(names[:10]) or "(it has none)"
