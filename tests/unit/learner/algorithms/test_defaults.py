import pytest

from rollcast.learner.algorithms.defaults import (
    ALGORITHM_DEFAULTS,
    check_algorithm,
    foreign_groups,
    short_name,
    with_algorithm_defaults,
)
from rollcast.learner.algorithms.minibatches import default_minibatch_steps
from rollcast.learner.settings.learning import LearnerSettings
from rollcast.services.errors import ConfigurationError

OWN = "my.module:Mine"


@pytest.mark.parametrize(
    ("algorithm", "foreign"),
    [
        ("impala", {"ppo", "appo", "sac", "dqn", "r2d2", "replay"}),
        ("ppo", {"impala", "appo", "sac", "dqn", "r2d2", "replay"}),
        ("appo", {"impala", "ppo", "sac", "dqn", "r2d2", "replay"}),
        ("sac", {"impala", "ppo", "appo", "dqn", "r2d2"}),
        ("dqn", {"impala", "ppo", "appo", "sac", "r2d2"}),
        ("r2d2", {"impala", "ppo", "appo", "sac", "dqn"}),
        (OWN, {"impala", "ppo", "appo", "sac", "dqn", "r2d2"}),
        ("unknown", set()),
    ],
)
def test_foreign_groups_are_read_by_other_algorithms_only(algorithm: str, foreign: set[str]):
    assert foreign_groups(algorithm) == foreign


def test_short_name_leaves_the_module_out():
    assert [short_name(name) for name in ("sac", OWN)] == ["sac", "Mine"]


def test_algorithms_are_those_that_there_are_and_classes_of_modules():
    for name in (*ALGORITHM_DEFAULTS, OWN):
        assert check_algorithm(name) == name
    for name in ("a2c", "", "my module:", ":Mine"):
        with pytest.raises(ConfigurationError):
            check_algorithm(name)


def test_defaults_replace_only_settings_that_were_not_given():
    given = LearnerSettings.model_validate({"batch_size": 5, "replay": {"n_step": 2}})
    settings = with_algorithm_defaults(given, "dqn")
    assert (settings.batch_size, settings.envs_per_actor) == (5, 4)
    assert (settings.replay.n_step, settings.replay.sampler) == (2, "prioritized")
    assert with_algorithm_defaults(given, OWN) == given


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "dqn", OWN])
def test_the_policy_of_an_atari_game_sees_four_frames_by_default(algorithm: str):
    for given, expected in (({}, 1), ({"atari": True}, 4), ({"atari": True, "frame_stack": 2}, 2)):
        assert with_algorithm_defaults(LearnerSettings.model_validate(given), algorithm).frame_stack == expected


@pytest.mark.parametrize(
    ("algorithm", "clips"),
    [("impala", True), ("ppo", True), ("appo", True), ("dqn", True), ("sac", True), ("r2d2", False)],
)
def test_points_of_an_atari_game_are_clipped_unless_values_are_rescaled(algorithm: str, clips: bool):
    for atari in (False, True):
        settings = with_algorithm_defaults(LearnerSettings.model_validate({"atari": atari}), algorithm)
        own = getattr(settings, algorithm)
        found = {settings.replay.reward_clip, getattr(own, "reward_clip", "none")}
        assert ("unit" in found) == (atari and clips)


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "appo", "dqn", "r2d2"])
def test_defaults_of_atari_are_those_of_the_papers_unless_given(algorithm: str):
    plain = with_algorithm_defaults(LearnerSettings(), algorithm)
    given = LearnerSettings.model_validate({"atari": True, "batch_size": 6, algorithm: {"learning_rate": 0.5}})
    settings = with_algorithm_defaults(given, algorithm)
    assert (settings.batch_size, getattr(settings, algorithm).learning_rate) == (6, 0.5)
    assert settings.total_steps == max(10_000_000, plain.total_steps)
    own, plain_own = getattr(settings, algorithm), getattr(plain, algorithm)
    assert own.model_dump(exclude={"learning_rate"}) != plain_own.model_dump(exclude={"learning_rate"})
    # The rest are the algorithm's.
    assert settings.n_rollout_steps == plain.n_rollout_steps


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "appo"])
@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ({"atari": True}, True),
        ({"atari": True, "network": "impala_resnet"}, True),
        ({}, False),
        ({"atari": True, "network": "mlp"}, False),
        ({"atari": True, "network": "tests.networks:make_linear"}, False),
        ({"atari": True, "recurrence": "lstm"}, False),
    ],
)
def test_policy_and_critic_of_an_atari_game_share_the_torso_where_they_can(
    algorithm: str, given: dict[str, object], shares: bool
):
    settings = with_algorithm_defaults(LearnerSettings.model_validate(given), algorithm)
    assert getattr(settings, algorithm).share_torso == shares


def test_r2d2_sees_single_frames_of_an_atari_game():
    assert with_algorithm_defaults(LearnerSettings.model_validate({"atari": True}), "r2d2").frame_stack == 1


@pytest.mark.parametrize(
    ("n_steps", "recurrent", "expected"),
    [(128, False, 64), (2048, False, 64), (2048, True, 256), (4096, False, 128), (131_072, True, 4096)],
)
def test_minibatches_grow_with_the_batch(n_steps: int, recurrent: bool, expected: int):
    assert default_minibatch_steps(n_steps, recurrent=recurrent) == expected
