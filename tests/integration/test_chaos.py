"""A short `make chaos`: nothing lost, nothing twice, nothing damaged, nothing hangs."""

from pathlib import Path

import pytest

from tests.chaos.run import run_chaos

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("learner", ["queue", "replay"])
def test_faults_cost_time_only(learner: str, tmp_path: Path):
    report = run_chaos(tmp_path, learner=learner, n_faults=12, n_actors=3, seed=11, short=True)
    assert report.is_clean, report
    assert len(report.recoveries) == 12, report
    assert len({recovery.fault.kind for recovery in report.recoveries}) > 4, report
    assert 0 < report.n_acknowledged <= report.n_rollouts, report
