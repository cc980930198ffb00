from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.recipes import read_recipe, recipe_names
from tests.processes import ROOT


def test_every_file_of_the_folder_is_a_recipe():
    assert recipe_names() == tuple(sorted(path.stem for path in (ROOT / "recipes").iterdir()))


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith(("ppo-", "appo-"))])
def test_a_recipe_does_not_learn_otherwise_with_other_actors_or_defaults_that_follow_them(name: str):
    recipe = read_recipe(name)
    assert recipe["batch_size"] % recipe.get("envs_per_actor", 8) == 0
    assert recipe[recipe["algorithm"]]["minibatch_steps"] >= 64


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"there is no recipe 'ppo-carpole'; .* did you mean ppo-cartpole"):
        read_recipe("ppo-carpole")


def test_file_is_refused_with_the_option_for_files(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("env_id: CartPole-v1\n")
    with pytest.raises(
        ConfigurationError, match=f"'{path}' is a file; expected the name of a recipe; use --config {path}"
    ):
        read_recipe(str(path))
