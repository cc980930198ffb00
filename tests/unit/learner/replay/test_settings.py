import pytest
from pydantic import ValidationError

from rollcast.learner.replay.settings import ReplaySettings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size": 41}, "min_size is 41, above the capacity of 40"),
        ({"entry": "rollouts", "n_step": 3}, "n_step is 3 with entry 'rollouts'"),
        ({"sequence_length": 3}, "sequence_length is 3 and burn_in 0 with entry 'transitions'"),
        ({"entry": "rollouts", "burn_in": 3}, "burn_in is 3 without a sequence_length"),
        ({"samples_per_insert": 3.0, "max_times_sampled": 2}, "samples_per_insert is 3 and max_times_sampled 2"),
        ({"error_buffer": 3.0}, "error_buffer is 3 without samples_per_insert"),
        ({"capcity": 3}, "capcity"),
        ({"alpha": -1.0}, "alpha"),
    ],
)
def test_refuses_settings_that_contradict_each_other(settings: dict, text: str):
    with pytest.raises(ValidationError, match=text):
        ReplaySettings(**{"capacity": 40, **settings})


@pytest.mark.parametrize(
    ("entry", "log_prob", "expected"),
    [("rollouts", None, True), ("transitions", None, False), ("rollouts", False, False), ("transitions", True, True)],
)
def test_keeps_log_probabilities_with_rollouts_by_default(entry: str, log_prob: bool | None, expected: bool):
    assert ReplaySettings(entry=entry, log_prob=log_prob).keeps_log_prob is expected
