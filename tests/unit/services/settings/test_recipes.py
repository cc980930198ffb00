from pathlib import Path

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.recipes import read_recipe, recipe_names
from tests.processes import ROOT


def test_every_file_of_the_folder_is_a_recipe():
    assert recipe_names() == tuple(sorted(path.stem for path in (ROOT / "recipes").iterdir()))


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
