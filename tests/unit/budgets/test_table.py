import pytest

from tests.budgets.paths import SCENARIOS
from tests.budgets.table import differences

SCENARIO = "replay, uniform"


@pytest.fixture
def measured():
    return SCENARIOS[SCENARIO]()


def test_a_difference_names_the_number_and_the_function(measured):
    measured["learner: a batch drawn"]["locks", "learner.replay.buffer.ReplayBuffer.size"] += 1
    assert differences(SCENARIO, measured) == [
        "replay, uniform, learner: a batch drawn: 1 locks before, 2 now",
        "  +1 in learner.replay.buffer.ReplayBuffer.size: 0 -> 1",
    ]


def test_work_that_is_new_or_gone_is_a_difference(measured):
    measured["learner: another draw"] = measured.pop("learner: a batch drawn")
    lines = differences(SCENARIO, measured)
    assert "replay, uniform, learner: a batch drawn: 1 locks before, 0 now" in lines
    assert "replay, uniform, learner: another draw: 0 locks before, 1 now" in lines
