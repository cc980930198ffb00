"""The hot paths do as much as is recorded, neither more nor less."""

import sys

import pytest

from tests.budgets.paths import SCENARIOS, UPDATES
from tests.budgets.table import differences, read

HOW_TO_GO_ON = "if that is meant, `make budgets ARGS=--record` records it; say in the commit message why"

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the budgets are those of Python 3.11; others make other calls"
)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=[pytest.mark.slow] * (name in UPDATES)) for name in SCENARIOS]
)
def test_a_path_does_the_work_that_is_recorded(scenario: str):
    changes = differences(scenario, SCENARIOS[scenario]())
    assert not changes, "\n".join(["", *changes, "", HOW_TO_GO_ON])


def test_the_table_has_no_scenario_that_is_gone():
    assert read().keys() == SCENARIOS.keys()
