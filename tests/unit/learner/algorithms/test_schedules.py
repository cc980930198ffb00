import pytest

from rollcast.learner.algorithms.schedules import linear, make_schedule
from rollcast.services.errors import ConfigurationError


def test_constant_ignores_progress():
    schedule = make_schedule("constant", 0.3)
    assert [schedule(progress) for progress in (0.0, 0.5, 1.0)] == [0.3, 0.3, 0.3]


def test_linear_meets_both_ends_exactly_and_stays_there():
    schedule = linear(0.1, 0.7)
    assert schedule(0.0) == 0.1
    assert schedule(0.5) == pytest.approx(0.4)
    assert schedule(1.0) == 0.7
    assert schedule(-0.1) == 0.1
    assert schedule(1.1) == 0.7


def test_schedules_are_made_by_name():
    falling = make_schedule("linear", 0.2)
    assert [falling(progress) for progress in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([0.2, 0.105, 0.01, 0.01])
    with pytest.raises(ConfigurationError, match="no schedule 'cosine'; expected 'constant' or 'linear'"):
        make_schedule("cosine", 1.0)  # type: ignore[arg-type]
