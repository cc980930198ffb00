"""Exports names from a package, and imports their modules only at first use."""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping

from rollcast.services.process.installation import EXTRAS, missing_message


def lazy_exports(package: str, *, extra: str | None = None) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    `import rollcast.actor` must not load torch only because one of its names needs torch. A package that uses this
    function has its imports under `if TYPE_CHECKING:`. Type checkers, editors, the API reference and this function read
    these imports to find the module of a name.

    Args:
        package: The package's `__name__`. Its `__all__` lists the imported names.
        extra: The extra of this project that the modules need. If it is not installed, the ModuleNotFoundError contains
            the command that installs it.

    Returns:
        `__getattr__`, which imports the module of a name and keeps the value in the package; `__dir__`, which lists
        the exported names.
    """

    def get(name: str) -> object:
        home = (
            None if name.startswith("__") else _assignment(package).get(name)
        )  # Python asks for `__path__` and the like
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value: object = getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            if extra is None or error.name not in EXTRAS[extra]:
                raise
            raise ModuleNotFoundError(
                missing_message(extra, f"{package}.{name}", [error.name]), name=error.name
            ) from error
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(_assignment(package))


@functools.cache
def _assignment(package: str) -> Mapping[str, str]:
    """Returns the module of each name that a package imports under `if TYPE_CHECKING:`."""
    import ast
    import inspect  # not above: a health check of a container imports this module and needs neither

    source = ast.parse(inspect.getsource(sys.modules[package]))
    blocks = (node for node in source.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}
