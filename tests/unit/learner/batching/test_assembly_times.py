"""Tests of the trainer's share of assembling, by a clock that the tests set."""

import pytest

from rollcast.learner.batching.assembly_times import AssemblyTimes
from tests.clocks import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


def collect(times: AssemblyTimes, clock: Clock, *, wait_s: float | None, assemble_s: float) -> None:
    with times.collecting():
        clock.now += assemble_s / 2
        if wait_s is not None:
            with times.waiting():
                clock.now += wait_s
        clock.now += assemble_s / 2


def test_the_share_is_of_copies_and_not_of_waits_for_rollouts(clock: Clock):
    times = AssemblyTimes()
    collect(times, clock, wait_s=3.0, assemble_s=1.0)
    clock.now += 6.0
    assert times.take() == {"assembly/trainer_fraction": 0.1, "assembly/ready_fraction": 0.0}


def test_a_batch_without_a_wait_was_ready(clock: Clock):
    times = AssemblyTimes()
    for wait_s in (None, 0.0, None, None):
        collect(times, clock, wait_s=wait_s, assemble_s=1.0)
    assert times.take()["assembly/ready_fraction"] == 0.75


def test_each_record_begins_anew(clock: Clock):
    times = AssemblyTimes()
    collect(times, clock, wait_s=1.0, assemble_s=1.0)
    times.take()
    collect(times, clock, wait_s=None, assemble_s=1.0)
    clock.now += 1.0
    assert times.take() == {"assembly/trainer_fraction": 0.5, "assembly/ready_fraction": 1.0}
    assert times.take() == {}, "nothing was collected, as with a replay buffer"
