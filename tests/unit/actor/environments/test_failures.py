import pytest

from rollcast.actor.environments.failures import FailureReport


def test_report_survives_json():
    with pytest.raises(ValueError, match="pole") as caught:
        int("the pole is broken")
    report = FailureReport.of(caught.value, doing="step", env_index=1, env_seed=22)
    assert FailureReport.from_json(report.to_json()) == report
    assert "ValueError: invalid literal" in report.exception_traceback
