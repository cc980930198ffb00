"""Spot machines: a third of the actors is taken now and again, and nothing is lost."""

from pathlib import Path

import pytest

from tests.chaos.spot import run_spot

pytestmark = pytest.mark.slow


def test_actors_that_are_taken_leave_in_time_and_lose_nothing(tmp_path: Path):
    """A period ends when every actor has played, whatever time that takes; `benchmarks.spot` measures."""
    report, rounds = run_spot(tmp_path, n_actors=6, n_envs=1, n_rounds=2, interval_s=0.0, step_s=0.02)
    # each process gone within its grace period, with exit code 0, and a goodbye
    assert report.is_clean, report
    assert report.n_starts == 6 + 2 * 2
    assert [(peace.n_taken, spot.n_taken) for peace, spot in rounds] == [(0, 2), (0, 2)]
    assert all(period.n_rollouts >= 6 for pair in rounds for period in pair), rounds
    # the last rollout of each was waited for: nothing was accepted whose actor did not hear of it
    assert report.n_acknowledged == report.n_rollouts, report
    assert (report.notes["refused"], report.notes["sent again and dropped"]) == (0, 0), report
