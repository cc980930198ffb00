"""`rollcast recipes`: lists the recipes, or prints one."""

from typing import TextIO

from rollcast.learner.commands.printing import print_table
from rollcast.services.process.output import write_output
from rollcast.services.settings.recipes import read_recipe, recipe_file, recipe_names
from rollcast.tools.settings import RecipesSettings


def recipes(settings: RecipesSettings, out: TextIO) -> int:
    """Prints the file of the recipe that the settings name; without a name, prints a table of all recipes.

    Args:
        settings: The settings of the command.
        out: Where to print.

    Returns:
        The exit code, 0.

    Raises:
        ConfigurationError: There is no such recipe.
    """
    if settings.name is not None:
        write_output(out, recipe_file(settings.name).read_text(encoding="utf-8"))
        return 0
    rows = [("recipe", "algorithm", "environment")]
    rows += [
        (name, str(recipe["algorithm"]), str(recipe["env_id"]))
        for name in recipe_names()
        for recipe in [read_recipe(name)]
    ]
    print_table(out, rows)
    return 0
