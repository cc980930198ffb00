import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from rollcast.actor.environments.failures import (
    EnvironmentFailedError,
    EnvironmentLostError,
    FailureReport,
    environment_failure,
)
from rollcast.actor.environments.returned_values import InvalidValueError
from rollcast.actor.vector.sequential import SequentialVectorEnv
from tests.unit.actor.sample_environments import FailingEnv, NumberedEnv


def report_of(error: Exception) -> FailureReport:
    try:
        raise error
    except type(error) as raised:
        return FailureReport.of(raised, doing="step", env_index=1, env_seed=22)


def test_report_survives_json():
    report = report_of(ValueError("the pole is broken"))
    assert FailureReport.from_json(report.to_json()) == report
    assert "ValueError: the pole is broken" in report.exception_traceback


def test_error_names_environment_seed_and_exception():
    error = EnvironmentFailedError(report_of(ValueError("the pole is broken")))
    assert str(error).startswith("environment 1 (seed 22) raised ValueError in step(): the pole is broken; expected")
    assert (error.env_index, error.env_seed, error.exception_type) == (1, 22, "ValueError")


def test_error_about_a_wrong_value_does_not_say_that_the_environment_raised():
    error = EnvironmentFailedError(report_of(InvalidValueError("the reward is None; expected a number; correct it")))
    assert str(error) == (
        "environment 1 (seed 22) returned a wrong value from step(): the reward is None; expected a number; correct it"
    )


def test_lost_environment_names_index_and_seed():
    error = EnvironmentLostError("has not returned from step()", env_index=3, env_seed=7)
    assert str(error) == "environment 3 (seed 7) has not returned from step()"
    assert (error.env_index, error.env_seed) == (3, 7)


def failing_vector(kind) -> gymnasium.vector.VectorEnv:
    return kind([lambda: NumberedEnv((5,)), lambda: FailingEnv(1)])


def test_reads_the_index_from_gymnasiums_vector():
    vector_env = failing_vector(SyncVectorEnv)
    vector_env.reset()
    with pytest.raises(ValueError, match="the pole is broken") as caught:
        vector_env.step([0, 0])
    error = environment_failure(caught.value, vector_env, doing="step", env_seeds=(11, 22))
    assert (error.env_index, error.env_seed) == (1, 22)
    vector_env.close()


def test_index_is_unknown_for_other_vectors():
    vector_env = failing_vector(SequentialVectorEnv)
    error = environment_failure(RuntimeError("broken"), vector_env, doing="step", env_seeds=(11, 22))
    assert str(error).startswith("one of the environments (seed 11) raised RuntimeError in step(): broken")
    assert error.env_index is None
    vector_env.close()
