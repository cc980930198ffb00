"""The variable that makes MKL's sums the same each time. `learner/devices/test_determinism` sees what it does."""

import os

import pytest

from rollcast.actor.rounding import fix_rounding
from rollcast.actor.threads import limit_threads


@pytest.mark.parametrize("set_it", [fix_rounding, lambda: limit_threads(1)])
def test_is_set_for_this_process_and_those_started_later(set_it, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {})
    set_it()
    assert os.environ["MKL_CBWR"] == "AUTO,STRICT"


def test_a_value_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_rounding()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"
