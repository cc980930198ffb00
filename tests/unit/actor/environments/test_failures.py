from rollcast.actor.environments.failures import (
    EnvironmentFailedError,
    EnvironmentLostError,
    FailureReport,
)
from rollcast.actor.environments.returned_values import InvalidValueError


def report_of(error: Exception) -> FailureReport:
    try:
        raise error
    except type(error) as raised:
        return FailureReport.of(raised, doing="step", env_index=1, env_seed=22)


def test_report_survives_json():
    report = report_of(ValueError("the pole is broken"))
    assert FailureReport.from_json(report.to_json()) == report
    assert "ValueError: the pole is broken" in report.exception_traceback


def test_error_about_a_wrong_value_does_not_say_that_the_environment_raised():
    error = EnvironmentFailedError(report_of(InvalidValueError("the reward is None; expected a number; correct it")))
    assert str(error) == (
        "environment 1 (seed 22) returned a wrong value from step(): the reward is None; expected a number; correct it"
    )


def test_lost_environment_names_index_and_seed():
    error = EnvironmentLostError("has not returned from step()", env_index=3, env_seed=7)
    assert str(error) == "environment 3 (seed 7) has not returned from step()"
    assert (error.env_index, error.env_seed) == (3, 7)
