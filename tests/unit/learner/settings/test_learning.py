import re
from pathlib import Path

import gymnasium
import pytest
from pydantic import ValidationError

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.settings import ActorSettings
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.learner.settings.record import RecordSettings
from rollcast.learner.settings.replay_serve import ReplayServeSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from rollcast.services.settings.recipes import read_recipe, recipe_names
from rollcast.tools.commands import COMMANDS
from rollcast.tools.slurm.settings import SlurmSettings


def train_settings(*arguments: str) -> TrainSettings:
    return TrainSettings.from_command_line("rollcast train", list(arguments))


@pytest.mark.parametrize("settings", [LearnerSettings, TrainSettings])
@pytest.mark.parametrize(("algorithm", "envs_per_actor"), [("impala", 8), ("dqn", 4), ("r2d2", 4), ("sac", 1)])
def test_algorithm_sets_envs_per_actor_unless_it_is_given(settings, algorithm: str, envs_per_actor: int):
    arguments = ["--algorithm", algorithm]
    assert settings.from_command_line("rollcast", arguments).envs_per_actor == envs_per_actor
    assert settings.from_command_line("rollcast", [*arguments, "--envs-per-actor", "7"]).envs_per_actor == 7


@pytest.mark.parametrize(
    ("settings", "arguments"), [(TrainSettings, []), (ServingSettings, []), (SlurmSettings, ["--actors", "4"])]
)
def test_ppo_with_its_own_defaults_is_the_default(settings: type[LearnerSettings], arguments: list[str]):
    by_default, named = (
        settings.from_command_line("rollcast", [*arguments, "--env-id", "Acrobot-v1", *chosen])
        for chosen in ([], ["--algorithm", "ppo"])
    )
    assert by_default.model_dump() == named.model_dump()
    assert (named.algorithm, named.n_rollout_steps, named.total_steps) == ("ppo", 128, 1_000_000)


@pytest.mark.parametrize("settings", [LearnerSettings, ActorSettings])
def test_rejects_more_environments_than_the_protocol_allows(settings):
    most = settings.from_command_line("rollcast", ["--envs-per-actor", str(MAX_ENVS_PER_ACTOR)])
    assert most.envs_per_actor == MAX_ENVS_PER_ACTOR
    with pytest.raises(ConfigurationError, match=f"expected at most {MAX_ENVS_PER_ACTOR}"):
        settings.from_command_line("rollcast", ["--envs-per-actor", str(MAX_ENVS_PER_ACTOR + 1)])


@pytest.mark.parametrize("command", ["train", "learner"])
@pytest.mark.parametrize(
    ("algorithm", "own", "default"),
    [
        ("impala", {"impala"}, ("--batch-size", "8")),
        ("sac", {"sac", "replay"}, ("--batch-size", "256")),
        ("dqn", {"dqn", "replay"}, ("--replay.n-step", "3")),
        ("r2d2", {"r2d2", "replay"}, ("--replay.burn-in", "10")),
    ],
)
def test_help_shows_settings_and_defaults_of_the_chosen_algorithm(
    command: str, algorithm: str, own: set[str], default: tuple[str, str], capsys: pytest.CaptureFixture[str]
):
    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            COMMANDS[command].settings().from_command_line(
                f"rollcast {command}", ["--algorithm", algorithm, *arguments]
            )
        return capsys.readouterr().out

    first, everything = shown("--help"), shown("--help-all")
    assert len(re.findall(r"^  --", first, re.M)) - 2 <= 24, "what matters, --help-all and --config"
    assert len(first.splitlines()) <= 70
    groups = set(re.findall(r"^  --(\w+)\.", everything, re.M))
    # A run of several ranks is started as several learners.
    assert groups == own | {"limits"} | ({"ranks"} if command == "learner" else set())
    option, value = default
    assert re.search(rf"^  {re.escape(option)} INT.*?\(default: {value}\)", everything, re.M | re.S)


@pytest.mark.parametrize("by_variable", [False, True])
def test_sequences_of_r2d2_need_no_entry(by_variable: bool, monkeypatch: pytest.MonkeyPatch):
    if by_variable:
        monkeypatch.setenv("ROLLCAST_ALGORITHM", "r2d2")
    arguments = ["--replay.sequence-length", "50", "--replay.burn-in", "14", "--n-rollout-steps", "64"]
    arguments += [] if by_variable else ["--algorithm", "r2d2"]
    settings = TrainSettings.from_command_line("rollcast train", arguments)
    replay = settings.replay
    assert (replay.entry, replay.sequence_length, replay.burn_in, replay.sampler) == (
        *("rollouts", 50, 14),
        "prioritized",
    )
    assert settings.recurrence == "lstm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay.n-step", "3"], "^--replay.n-step is 3 with entry 'rollouts'.*let the algorithm fold"),
        (["--replay.burn-in", "3"], "^--replay.burn-in is 3 without a --replay.sequence-length"),
        (["--replay.entry", "transitions", "--replay.burn-in", "3"], "--replay.burn-in 3 with entry 'transitions'"),
    ],
)
def test_r2d2_refuses_settings_of_transitions(arguments: list[str], message: str):
    with pytest.raises(ConfigurationError, match=message):
        TrainSettings.from_command_line("rollcast train", ["--algorithm", "r2d2", *arguments])


@pytest.mark.parametrize(
    ("option", "guess"),
    [
        ("--n-actor", "--n-actors?"),
        ("--learning-rate", "--ppo.learning-rate?"),
        ("--impala.learnig-rate", "--impala.learning-rate?"),
        ("--impala.double", "--dqn.double, or --r2d2.double?"),
        ("--when-to-stop", ""),
    ],
)
def test_rejects_unknown_option_and_suggests_one_that_applies(option: str, guess: str):
    with pytest.raises(ConfigurationError) as caught:
        TrainSettings.from_command_line("rollcast train", [option, "1"])
    assert str(caught.value).endswith(f"did you mean {guess}" if guess else "--help-all lists all")


class TestOptionsOfAnotherAlgorithm:
    @pytest.mark.parametrize("settings", [ServingSettings, TrainSettings])
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["--sac.tau", "0.1"],
                r"--sac.tau: the algorithm is 'ppo' \(the default\), which does not use it; .* --algorithm sac$",
            ),
            (["--impala.discount=0.9"], r"--impala.discount: the algorithm is 'ppo' \(the default\), .* impala$"),
            (["--algorithm", "ppo", "--no-dqn.double"], "--no-dqn.double: the algorithm is 'ppo', which"),
            (["--replay.capacity=5"], "--replay.capacity: .* choose --algorithm sac, dqn or r2d2$"),
            (["--algorithm", "dqn", "--impala.discount", "0.5"], "--impala.discount: the algorithm is 'dqn'"),
            (["--algorithm", "my.module:Mine", "--sac.tau", "0.1"], "--sac.tau: the algorithm is 'my.module:Mine'"),
        ],
    )
    def test_are_refused_on_the_command_line(self, settings, arguments: list[str], message: str):
        with pytest.raises(ConfigurationError, match=message):
            settings.from_command_line("rollcast", arguments)

    def test_are_refused_in_a_file_unless_they_are_defaults(self, tmp_path: Path):
        file = tmp_path / "run.yaml"
        file.write_text("sac:\n  tau: 0.005\n")
        assert TrainSettings.from_command_line("rollcast", ["--config", str(file)]).algorithm == "ppo"
        file.write_text("sac:\n  tau: 0.1\n")
        with pytest.raises(
            ConfigurationError, match=r"sac \(from '.*run.yaml'\): the algorithm is 'ppo' \(the default\)"
        ):
            TrainSettings.from_command_line("rollcast", ["--config", str(file)])
        chosen = TrainSettings.from_command_line("rollcast", ["--config", str(file), "--algorithm", "sac"])
        assert chosen.sac.tau == 0.1

    def test_are_taken_from_the_environment_where_they_may_be_left_over(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("ROLLCAST_SAC__TAU", "0.1")
        assert TrainSettings.from_command_line("rollcast", []).sac.tau == 0.1

    def test_are_not_left_over_if_they_are_those_of_the_former_default(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("ROLLCAST_IMPALA__DISCOUNT", "0.9")
        refused = r"ROLLCAST_IMPALA__DISCOUNT: the algorithm is 'ppo' \(the default\), .*choose --algorithm impala$"
        with pytest.raises(ConfigurationError, match=refused):
            train_settings()
        assert train_settings("--algorithm", "impala").impala.discount == 0.9
        assert train_settings("--algorithm", "ppo").impala.discount == 0.9, "left over"

    def test_include_no_replay_settings_for_an_own_algorithm(self):
        arguments = ["--algorithm", "my.module:Mine", "--replay.capacity", "50"]
        assert TrainSettings.from_command_line("rollcast", arguments).replay.capacity == 50

    def test_are_judged_by_the_algorithm_of_the_resumed_run(self, tmp_path: Path):
        begun = TrainSettings.from_command_line("rollcast", ["--algorithm", "sac"])
        RunDirectory(tmp_path).write_settings(begun.model_dump(mode="json"))
        resume = ["--resume", str(tmp_path)]
        assert TrainSettings.from_command_line("rollcast", [*resume, "--sac.tau", "0.1"]).sac.tau == 0.1
        with pytest.raises(ConfigurationError, match=r"--dqn\.target-tau: the algorithm is 'sac'"):
            TrainSettings.from_command_line("rollcast", [*resume, "--dqn.target-tau", "0.1"])


@pytest.mark.parametrize("settings", [TrainSettings, ServingSettings, ActorSettings, ReplayServeSettings])
def test_every_command_makes_the_same_environment_of_the_same_settings(settings, monkeypatch: pytest.MonkeyPatch):
    given = ["--env-id", "ALE/Pong-v5", "--env-kwargs", '{"mode": 1}', "--agent-policies", "separate"]
    expected = EnvironmentFactory("ALE/Pong-v5", {"mode": 1}, agent_policies="separate", atari=True)
    assert settings.from_command_line("rollcast", [*given, "--atari"]).env_factory() == expected
    for variable, atari in (("true", True), ("", False)):
        monkeypatch.setenv("ROLLCAST_ATARI", variable)
        assert settings.from_command_line("rollcast", given).env_factory().atari is atari


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("kind", [TrainSettings, ServingSettings])
def test_recipe_is_valid_and_named_after_its_algorithm(kind: type, name: str):
    settings = kind.from_command_line("rollcast", ["--recipe", name])
    values = read_recipe(name)
    assert settings.algorithm == values["algorithm"] == name.partition("-")[0]
    assert (settings.env_id, settings.env_kwargs) == (values["env_id"], values.get("env_kwargs", {}))
    assert settings.env_id in gymnasium.registry or ":" in settings.env_id
    for group, options in values.items():
        if isinstance(options, dict) and group != "env_kwargs":
            assert {option: getattr(getattr(settings, group), option) for option in options} == options


@pytest.mark.parametrize("name", recipe_names())
def test_an_actor_of_the_recipe_makes_the_learners_environment(name: str):
    acting = ActorSettings.from_command_line("rollcast actor", ["--recipe", name])
    learning = ServingSettings.from_command_line("rollcast learner", ["--recipe", name])
    assert acting.env_factory() == learning.env_factory()
    assert acting.network in (learning.network, "auto")


def test_values_win_over_defaults_and_lose_to_file_environment_and_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert train_settings("--recipe", "ppo-cartpole").ppo.n_epochs == 20
    assert train_settings("--recipe", "ppo-cartpole").ppo.clip_range == 0.2, "PPO's default"
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: ppo-cartpole\nppo: {n_epochs: 3}\n")
    read = train_settings("--config", str(file)).ppo
    assert (read.n_epochs, read.gae_lambda) == (3, 0.8)
    monkeypatch.setenv("ROLLCAST_RECIPE", "ppo-cartpole")
    monkeypatch.setenv("ROLLCAST_PPO__N_EPOCHS", "4")
    assert (train_settings().env_id, train_settings().ppo.n_epochs) == ("CartPole-v1", 4)
    assert train_settings("--ppo.n-epochs", "5", "--env-id", "Acrobot-v1").ppo.n_epochs == 5


@pytest.mark.parametrize("command", ["train", "learner"])
def test_help_shows_the_values_as_defaults(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        COMMANDS[command].settings().from_command_line(f"rollcast {command}", ["--recipe", "ppo-cartpole", "--help"])
    shown = capsys.readouterr().out
    assert re.search(r"--ppo.n-epochs INT .*\(default: 20\)", shown)
    assert re.search(r"--envs-per-actor INT[^(]*\(default: 4\)", shown)


def test_algorithm_of_another_recipe_is_refused():
    with pytest.raises(ConfigurationError, match=r"ppo \(from the recipe\): the algorithm is 'sac'"):
        train_settings("--recipe", "ppo-cartpole", "--algorithm", "sac")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "rollouts is None and steps is None; expected exactly one"),
        (("--rollouts", "1", "--steps", "1"), "rollouts is 1 and steps is 1; expected exactly one"),
        (
            ("--steps", "1", "--deterministic"),
            "deterministic is True with policy 'random'; expected the policy of a run",
        ),
        (("--steps", "1", "--deterministic", "--policy", "runs/mine"), None),
    ],
)
def test_rejects_settings_that_contradict_each_other(arguments: tuple[str, ...], message: str | None):
    given = ["--output", "x", *arguments]
    if message is None:
        assert RecordSettings.from_command_line("rollcast record", given).deterministic
        return
    with pytest.raises(ConfigurationError, match=message):
        RecordSettings.from_command_line("rollcast record", given)


def test_rejects_the_device_of_a_learner():
    with pytest.raises(ValidationError, match="device is 'learner', but replay serve has no learner"):
        ReplayServeSettings(replay=ReplaySettings(device="learner"))
