"""Makes a package export names whose modules are imported only when a name is first used."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

from rollcast.services.process.installation import EXTRAS, missing_message


def lazy_exports(
    package: str, exported: Mapping[str, Sequence[str]], *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    `import rollcast.actor` must not load torch because one name of the package needs it. A package that uses this also
    imports its names under `TYPE_CHECKING`: type checkers, editors and the API reference read those lines.

    Args:
        package: The package's `__name__`.
        exported: The names by module: `{"rollcast.learner.batch": ("Batch", "BatchColumns")}`.
        extra: The extra of this project that brings what the modules import beyond a plain installation. Where it is
            missing, the ModuleNotFoundError names the command that installs it.

    Returns:
        `__getattr__`, which imports the module of a name and keeps the value in the package; `__dir__`, which lists
        the exported names.
    """
    homes = {name: module for module, names in exported.items() for name in names}

    def get(name: str) -> object:
        home = homes.get(name)
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

    return get, lambda: sorted(homes)
