import threading

import pytest

from rollcast.learner.checkpoints import pace as pace_module
from rollcast.learner.checkpoints.pace import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time."""
    now = [0.0]
    monkeypatch.setattr(pace_module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("worked_s", "rested_s"), [(0.01, 0.09), (5.0, 0.25)])
def test_it_rests_by_what_was_worked(clock, monkeypatch, worked_s, rested_s):
    rests: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _event, seconds: rests.append(seconds))
    pace = Pace(0.1)
    for _ in range(2):
        clock[0] += worked_s
        pace.rest()
    assert rests == pytest.approx([rested_s, rested_s])


def test_whoever_is_in_a_hurry_ends_the_rest(clock):
    pace = Pace(1e-9)
    clock[0] += 1.0
    pace.end_rests()
    pace.rest()
