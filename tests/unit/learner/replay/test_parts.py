import pytest

from rollcast.learner.replay import free_memory
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.parts import plan_size
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import ConfigurationError
from tests.played_rollouts import SPACES
from tests.unit.learner.replay.test_buffer import T, make_buffer


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size": 1}, "min_size is 1, below the batch_size of 2"),
        ({"capacity": 1}, "holds 1 entries, fewer than a batch of 2"),
        ({"capacity": 3}, "holds 3 entries, fewer than the 4 steps of one rollout"),
        ({"capacity_bytes": 100}, "holds 0 entries .in 100 bytes., fewer than a batch of 2"),
        ({"samples_per_insert": 1.0, "error_buffer": 1.0}, "error_buffer is 1; expected at least 8"),
    ],
)
def test_refuses_impossible_settings(settings: dict, text: str):
    with pytest.raises(ConfigurationError, match=text):
        make_buffer(**settings)


def test_rejects_buffer_larger_than_free_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1_500_000)
    announced: list[str] = []
    with pytest.raises(ConfigurationError) as error:
        make_buffer(capacity=1_000_000, announce=announced.append)
    assert str(error.value).startswith(
        "a replay buffer of 1,000,000 transitions of 34.6 bytes takes 34.6 MB, and 1.5 MB are available; expected"
    )
    assert "lower the buffer's capacity, set its capacity_bytes, or" in str(error.value)
    assert announced == [
        "replay buffer: 1,000,000 transitions of 34.6 bytes, 34.6 MB in all; 1.5 MB of memory are available"
    ], "announced before it is refused, and so before it is allocated"
    assert make_buffer(capacity=1_000_000, capacity_bytes=1_400_000).info().n_bytes <= 1_400_000


def test_plans_the_largest_capacity_within_the_bytes():
    replay = ReplaySettings(capacity=1_000_000, capacity_bytes=1_400_000)
    layout = make_layout(RolloutShape(SPACES, T), log_prob=False)
    size = plan_size(replay, layout, batch_size=2)
    assert size.n_bytes <= 1_400_000
    larger = ReplaySettings(capacity=size.capacity + 1)
    assert plan_size(larger, layout, batch_size=2).n_bytes > 1_400_000
