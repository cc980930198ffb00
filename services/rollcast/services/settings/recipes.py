"""Reads recipes, the tuned settings of an algorithm for a task. The module imports neither torch nor gRPC."""

from pathlib import Path
from typing import Any, Final

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.origins import Origins
from rollcast.services.settings.suggestions import did_you_mean

_PACKAGE: Final = Path(__file__).resolve().parent.parent
# A wheel has the recipes in this package, a checkout at its top level.
_FOLDERS: Final = (_PACKAGE / "recipes", _PACKAGE.parents[2] / "recipes")


def recipe_names() -> tuple[str, ...]:
    """Returns the names of all recipes, `ALGORITHM-TASK`, in alphabetical order."""
    return tuple(sorted(path.stem for folder in _FOLDERS for path in folder.glob("*.yaml")))


def recipe_given(origins: Origins) -> dict[str, Any]:
    """Returns the unchecked settings of the recipe in the setting `recipe`; empty without a recipe.

    Raises:
        ConfigurationError: See `read_recipe`.
    """
    name = origins.value_of("recipe")
    if name is None:
        return {}
    try:
        return read_recipe(str(name))
    except ConfigurationError as error:
        raise ConfigurationError(f"--recipe: {name!r} is not valid{origins.describe(['recipe'])}: {error}") from error


def read_recipe(name: str) -> dict[str, Any]:
    """Returns the unchecked settings of a recipe, read like a file for `--config`.

    Args:
        name: The name of the recipe.

    Raises:
        ConfigurationError: There is no such recipe, or its file cannot be read.
    """
    # Imported here, because most processes read no recipe, and YAML takes time to import.
    from rollcast.services.settings.file import read_settings

    return read_settings(recipe_file(name), expected="a recipe", advice="restore it")


def recipe_file(name: str) -> Path:
    """Returns the file of a recipe.

    Raises:
        ConfigurationError: There is no such recipe.
    """
    names = recipe_names()
    if name not in names:
        if Path(name).is_file():
            raise ConfigurationError(
                f"the recipe {name!r} is a file; expected the name of a recipe; use --config {name}"
            )
        guess = did_you_mean(name, names)
        raise ConfigurationError(
            f"there is no recipe {name!r}; expected one of {', '.join(names)}; "
            f"{guess or 'rollcast recipes lists them with their tasks'}"
        )
    return next(path for folder in _FOLDERS if (path := folder / f"{name}.yaml").is_file())
