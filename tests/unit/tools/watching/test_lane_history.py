import numpy as np
import pytest

from rollcast.services.history.history import Lane, LearnerActivity
from rollcast.services.joining.activity import ActingState
from rollcast.tools.watching.lane_history import LaneHistory
from tests.histories import STARTED_UNIX_S, lane

A, S = ActingState.ACTING, ActingState.SENDING


def filled(*lanes: Lane, started: float = STARTED_UNIX_S) -> LaneHistory:
    history = LaneHistory()
    history.add(lanes, started)
    return history


def cells(history: LaneHistory, now: float, span_s: float, n: int, actor_id: str = "a") -> np.ndarray:
    return history.cells(actor_id, now_unix_s=STARTED_UNIX_S + now, span_s=span_s, n_cells=n)


def shown(history: LaneHistory, now: float, span_s: float, n: int, actor_id: str = "a") -> list[ActingState | None]:
    """Returns the main state of each cell; None: not known."""
    rows = cells(history, now, span_s, n, actor_id)
    return [ActingState(int(row.argmax()) + 1) if row.any() else None for row in rows]


def test_cells_of_one_second_are_the_intervals():
    history = filled(lane("a", [A, S, None, A, S]))
    assert shown(history, 5.0, 5.0, 5) == [A, S, None, A, S]
    assert cells(history, 5.0, 5.0, 5)[0].tolist() == [0, 255, 0, 0, 0, 0]


def test_longer_cells_are_means_of_what_is_known():
    found = cells(filled(lane("a", [A, A, S, S, A, None])), 6.0, 6.0, 3)
    assert found[:, A.value - 1].tolist() == [255, 0, 255]
    mixed = cells(filled(lane("a", [A, A, A, S])), 4.0, 4.0, 1)[0]
    assert mixed[[A.value - 1, S.value - 1]].tolist() == [191, 64]


def test_shorter_cells_repeat_the_intervals():
    assert shown(filled(lane("a", [A, S])), 2.0, 2.0, 8) == [A] * 4 + [S] * 4


def test_before_what_is_remembered_nothing_is_known():
    assert shown(filled(lane("a", [A, S])), 2.0, 4.0, 4) == [None, None, A, S]


def test_uses_coarse_intervals_for_what_is_older_than_the_fine_ones():
    history = filled(lane("a", [S] * 20, interval_s=15.0, end_s=600.0), lane("a", [A] * 300, end_s=600.0))
    assert shown(history, 600.0, 600.0, 4) == [None, None, A, A]
    history = filled(lane("a", [S] * 40, interval_s=15.0, end_s=600.0), lane("a", [A] * 300, end_s=600.0))
    assert shown(history, 600.0, 600.0, 4) == [S, S, A, A]


def test_short_loss_is_not_hidden_by_coarse_intervals():
    history = filled(lane("a", [A] * 4, interval_s=15.0), lane("a", [A] * 30 + [None] * 5 + [A] * 25))
    assert shown(history, 60.0, 60.0, 60) == [A] * 30 + [None] * 5 + [A] * 25


def test_actor_that_is_gone_is_not_known_at_the_end():
    history = filled(lane("a", [A] * 6, end_s=6.0), lane("b", [A] * 10, end_s=10.0))
    assert shown(history, 10.0, 10.0, 10) == [A] * 6 + [None] * 4


def test_lane_ends_with_its_newest_interval_and_not_with_an_unknown_cell():
    assert shown(filled(lane("a", [A, S, S])), 7.9, 3.0, 3) == [A, S, S]


def test_silent_learner_leaves_the_end_unknown():
    assert shown(filled(lane("a", [A] * 10)), 17.0, 14.0, 2) == [A, None]


def test_new_intervals_follow_and_those_between_are_not_known():
    history = filled(lane("a", [A, A]))
    history.add([lane("a", [S], end_s=5.0)], STARTED_UNIX_S)
    assert shown(history, 5.0, 5.0, 5) == [A, A, None, None, S]


def test_intervals_that_come_again_are_left_out():
    history = filled(lane("a", [A, S, A]))
    history.add([lane("a", [S, A, S, S], end_s=5.0)], STARTED_UNIX_S)
    history.add([lane("a", [A, A], end_s=2.0)], STARTED_UNIX_S)
    assert shown(history, 5.0, 5.0, 5) == [A, S, A, S, S]


def test_memory_is_bounded():
    history = filled(lane("a", [A] * 5000), lane("a", [S] * 5000, interval_s=15.0, end_s=5000.0))
    history.add([lane("a", [A], end_s=1e9)], STARTED_UNIX_S)
    assert known(history, 1e9, 10_000) == 1
    assert known(history, 5000.0, 5000) == 240 * 15, "the coarse ones of an hour"
    history = filled(lane("a", [A] * 5000))
    history.add([lane("a", [A] * 5000, end_s=7000.0)], STARTED_UNIX_S)
    assert known(history, 7000.0, 7000) == 300


def known(history: LaneHistory, now: float, seconds: int) -> int:
    """Returns the number of the last seconds of which something is known."""
    return int(cells(history, now, float(seconds), seconds).any(axis=1).sum())


def test_lanes_of_other_actors_are_forgotten():
    history = filled(lane("a", [A]), lane("b", [A]), lane("", [LearnerActivity.UPDATING]))
    history.keep({"b"})
    assert shown(history, 1.0, 1.0, 1) == [None]
    assert shown(history, 1.0, 1.0, 1, "b") == [A]
    assert cells(history, 1.0, 1.0, 1, "").any()


def test_restarted_learner_leaves_a_gap():
    history = filled(lane("a", [A, A]))
    history.begin_process(STARTED_UNIX_S + 4)
    history.add([lane("a", [S])], STARTED_UNIX_S + 4)
    assert shown(history, 5.0, 5.0, 5) == [A, A, None, None, S]


def test_clock_that_was_set_back_forgets_the_lanes_before():
    history = filled(lane("a", [A] * 10))
    history.begin_process(STARTED_UNIX_S + 4)
    history.add([lane("a", [S])], STARTED_UNIX_S + 4)
    assert shown(history, 5.0, 5.0, 5) == [None] * 4 + [S]


@pytest.mark.parametrize(("interval_s", "end_s"), [(0.0, 3.0), (-1.0, 3.0), (1.0, float("nan"))])
def test_lane_of_no_possible_time_is_left_out(interval_s, end_s):
    history = filled(Lane(actor_id="a", interval_s=interval_s, end_s=end_s, shares=lane("a", [A]).shares))
    assert shown(history, 3.0, 3.0, 3) == [None] * 3


def test_unknown_actor_and_learner_have_rows_of_their_number_of_states():
    assert cells(LaneHistory(), 1.0, 60.0, 7).shape == (7, len(ActingState))
    assert cells(LaneHistory(), 1.0, 60.0, 7, "").shape == (7, len(LearnerActivity))


def test_any_resampling_keeps_the_time_of_each_state():
    rng = np.random.default_rng(0)
    states = [list(ActingState)[number] for number in rng.integers(0, 6, 240)]
    history = filled(lane("a", states))
    exact = lane("a", states).shares.mean(axis=0)
    for n in (1, 7, 60, 239, 240, 241, 1000):
        assert cells(history, 240.0, 240.0, n).mean(axis=0) == pytest.approx(exact, abs=1.0)


def test_mean_shares_are_those_of_the_last_seconds():
    history = filled(lane("a", [S] * 60 + [A] * 30 + [None] * 10 + [S] * 20))
    shares = history.mean_shares("a", now_unix_s=STARTED_UNIX_S + 120, span_s=60.0)
    assert shares is not None
    assert shares[[A.value - 1, S.value - 1]] == pytest.approx([0.6, 0.4])
    assert history.mean_shares("b", now_unix_s=STARTED_UNIX_S + 120, span_s=60.0) is None
    assert history.mean_shares("a", now_unix_s=STARTED_UNIX_S + 500, span_s=60.0) is None


def test_copy_is_not_changed_by_later_intervals():
    history = filled(lane("a", [A]))
    copied = history.copy()
    history.add([lane("a", [S], end_s=2.0)], STARTED_UNIX_S)
    assert shown(copied, 1.0, 1.0, 1) == [A]


def test_unheard_is_the_time_since_the_last_interval_that_is_known():
    history = filled(lane("a", [A] * 30 + [None] * 20), lane("b", [A] * 50), lane("c", [None] * 50))
    history.add([lane("d", [A, None, None], interval_s=15.0, end_s=45.0)], STARTED_UNIX_S)
    assert [history.unheard_s(name) for name in "abcd"] == [20.0, 0.0, None, 35.0]
    assert history.unheard_s("nobody") is None
