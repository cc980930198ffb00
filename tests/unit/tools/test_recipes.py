import io

from rollcast.services.settings.recipes import recipe_names
from rollcast.tools.recipes import recipes
from rollcast.tools.settings import RecipesSettings
from tests.processes import ROOT


def printed(*arguments: str) -> str:
    out = io.StringIO()
    assert recipes(RecipesSettings.from_command_line("rollcast recipes", arguments), out) == 0
    return out.getvalue()


def test_lists_every_recipe_with_its_task():
    first, *rows = printed().splitlines()
    assert first.split() == ["recipe", "algorithm", "environment"]
    assert tuple(row.split()[0] for row in rows) == recipe_names()
    assert ["ppo-cartpole", "ppo", "CartPole-v1"] in [row.split() for row in rows]


def test_prints_the_file_of_one():
    assert printed("ppo-cartpole") == (ROOT / "recipes" / "ppo-cartpole.yaml").read_text()
