import re
from pathlib import Path

import gymnasium
import pytest

from rollcast.learner.settings.commands import COMMAND_SETTINGS
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.recipes import read_recipe, recipe_names
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import ConfigurationError
from tests.processes import ROOT


def settings_of(*arguments: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", list(arguments))


def test_every_file_of_the_folder_is_a_recipe():
    assert recipe_names() == tuple(sorted(path.stem for path in (ROOT / "recipes").iterdir()))


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("kind", [TrainSettings, ServingSettings])
def test_recipe_is_valid_and_named_after_its_algorithm(kind: type, name: str):
    settings = kind.from_command_line("rollcast", ["--recipe", name])
    values = read_recipe(name)
    assert settings.algorithm == values["algorithm"] == name.partition("-")[0]
    assert settings.env_id == values["env_id"]
    assert settings.env_id in gymnasium.registry or ":" in settings.env_id
    for group, options in values.items():
        if isinstance(options, dict):
            assert {option: getattr(getattr(settings, group), option) for option in options} == options


def test_values_win_over_defaults_and_lose_to_file_environment_and_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert settings_of("--recipe", "ppo-cartpole").ppo.n_epochs == 20
    assert settings_of("--recipe", "ppo-cartpole").ppo.clip_range == 0.2, "PPO's default"
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: ppo-cartpole\nppo: {n_epochs: 3}\n")
    read = settings_of("--config", str(file)).ppo
    assert (read.n_epochs, read.gae_lambda) == (3, 0.8)
    monkeypatch.setenv("ROLLCAST_RECIPE", "ppo-cartpole")
    monkeypatch.setenv("ROLLCAST_PPO__N_EPOCHS", "4")
    assert (settings_of().env_id, settings_of().ppo.n_epochs) == ("CartPole-v1", 4)
    assert settings_of("--ppo.n-epochs", "5", "--env-id", "Acrobot-v1").ppo.n_epochs == 5


@pytest.mark.parametrize("command", ["train", "learner"])
def test_help_shows_the_values_as_defaults(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        COMMAND_SETTINGS[command].from_command_line(f"rollcast {command}", ["--recipe", "ppo-cartpole", "--help"])
    shown = capsys.readouterr().out
    assert re.search(r"--ppo.n-epochs INT .*\(default: 20\)", shown)
    assert re.search(r"--envs-per-actor INT[^(]*\(default: 4\)", shown)


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"there is no recipe 'ppo-carpole'; .* did you mean ppo-cartpole"):
        settings_of("--recipe", "ppo-carpole")


def test_file_is_refused_with_the_option_for_files(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("env_id: CartPole-v1\n")
    with pytest.raises(
        ConfigurationError, match=f"'{path}' is a file; expected the name of a recipe; use --config {path}"
    ):
        settings_of("--recipe", str(path))


def test_algorithm_of_another_recipe_is_refused():
    with pytest.raises(ConfigurationError, match=r"ppo \(from the recipe\): the algorithm is 'sac'"):
        settings_of("--recipe", "ppo-cartpole", "--algorithm", "sac")
