import pytest

from rollcast.learner.settings.record import RecordSettings
from rollcast.services.errors import ConfigurationError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "rollouts is None and steps is None; expected exactly one"),
        (("--rollouts", "1", "--steps", "1"), "rollouts is 1 and steps is 1; expected exactly one"),
        (
            ("--steps", "1", "--deterministic"),
            "deterministic is True with policy 'random'; expected the policy of a run",
        ),
    ],
)
def test_rejects_settings_that_contradict_each_other(arguments: tuple[str, ...], message: str):
    with pytest.raises(ConfigurationError, match=message):
        RecordSettings.from_command_line("rollcast record", ["--output", "x", *arguments])


def test_takes_the_likeliest_actions_of_a_run():
    settings = RecordSettings.from_command_line(
        "rollcast record", ["--output", "x", "--steps", "1", "--deterministic", "--policy", "runs/mine"]
    )
    assert settings.deterministic
