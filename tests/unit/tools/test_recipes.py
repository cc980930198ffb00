from rollcast.services.settings.recipes import recipe_names
from rollcast.tools.recipes import recipes
from rollcast.tools.settings import RecipesSettings
from tests.processes import ROOT
from tests.unit.tools.printed import printed


def test_lists_every_recipe_with_its_task():
    first, *rows = printed(recipes, RecipesSettings).splitlines()
    assert first.split() == ["recipe", "algorithm", "environment"]
    assert tuple(row.split()[0] for row in rows) == recipe_names()
    assert ["ppo-cartpole", "ppo", "CartPole-v1"] in [row.split() for row in rows]


def test_prints_the_file_of_one():
    assert printed(recipes, RecipesSettings, "ppo-cartpole") == (ROOT / "recipes" / "ppo-cartpole.yaml").read_text()
