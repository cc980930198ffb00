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


OLD_AND_NEW = lane("a", [S] * 20, interval_s=15.0, end_s=600.0), lane("a", [A] * 300, end_s=600.0)
OLDER_AND_NEW = lane("a", [S] * 40, interval_s=15.0, end_s=600.0), lane("a", [A] * 300, end_s=600.0)
SHORT_LOSS = [A] * 30 + [None] * 5 + [A] * 25


@pytest.mark.parametrize(
    ("lanes", "now", "span_s", "seen"),
    [
        pytest.param([lane("a", [A, S, None, A, S])], 5.0, 5.0, [A, S, None, A, S], id="a second: the intervals"),
        pytest.param([lane("a", [A, S])], 2.0, 2.0, [A] * 4 + [S] * 4, id="shorter than an interval: repeated"),
        pytest.param([lane("a", [A, S])], 2.0, 4.0, [None, None, A, S], id="before what is remembered: not known"),
        pytest.param(OLD_AND_NEW, 600.0, 600.0, [None, None, A, A], id="coarse ones that end with the fine ones"),
        pytest.param(OLDER_AND_NEW, 600.0, 600.0, [S, S, A, A], id="coarse ones for what is older than the fine ones"),
        pytest.param(
            [lane("a", [A] * 4, interval_s=15.0), lane("a", SHORT_LOSS)],
            60.0,
            60.0,
            SHORT_LOSS,
            id="a short loss, which coarse ones do not hide",
        ),
        pytest.param(
            [lane("a", [A] * 6, end_s=6.0), lane("b", [A] * 10, end_s=10.0)],
            10.0,
            10.0,
            [A] * 6 + [None] * 4,
            id="an actor that is gone: not known at the end",
        ),
        pytest.param([lane("a", [A, S, S])], 7.9, 3.0, [A, S, S], id="the newest interval ends it"),
        pytest.param([lane("a", [A] * 10)], 17.0, 14.0, [A, None], id="a silent learner: the end is not known"),
        pytest.param(
            [lane("a", [A, A]), lane("a", [S], end_s=5.0)],
            5.0,
            5.0,
            [A, A, None, None, S],
            id="new ones later: those between are not known",
        ),
        pytest.param(
            [lane("a", [A, S, A]), lane("a", [S, A, S, S], end_s=5.0), lane("a", [A, A], end_s=2.0)],
            5.0,
            5.0,
            [A, S, A, S, S],
            id="the same ones again: left out",
        ),
    ],
)
def test_cells_show_what_is_known_of(lanes, now, span_s, seen):
    history = LaneHistory()
    for one in lanes:
        history.add([one], STARTED_UNIX_S)
    assert shown(history, now, span_s, len(seen)) == seen


def test_a_cell_of_one_second_has_its_state_alone():
    assert cells(filled(lane("a", [A, S, None, A, S])), 5.0, 5.0, 5)[0].tolist() == [0, 255, 0, 0, 0, 0]


def test_longer_cells_are_means_of_what_is_known():
    found = cells(filled(lane("a", [A, A, S, S, A, None])), 6.0, 6.0, 3)
    assert found[:, A.value - 1].tolist() == [255, 0, 255]
    mixed = cells(filled(lane("a", [A, A, A, S])), 4.0, 4.0, 1)[0]
    assert mixed[[A.value - 1, S.value - 1]].tolist() == [191, 64]


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


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        pytest.param([A, A], [A, A, None, None, S], id="a restart leaves a gap"),
        pytest.param([A] * 10, [None] * 4 + [S], id="a clock that was set back forgets the lanes before"),
    ],
)
def test_lanes_of_a_later_process_follow(before, seen):
    history = filled(lane("a", before))
    history.begin_process(STARTED_UNIX_S + 4)
    history.add([lane("a", [S])], STARTED_UNIX_S + 4)
    assert shown(history, 5.0, 5.0, 5) == seen


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


def test_unheard_is_the_time_since_the_last_interval_that_is_known():
    history = filled(lane("a", [A] * 30 + [None] * 20), lane("b", [A] * 50), lane("c", [None] * 50))
    history.add([lane("d", [A, None, None], interval_s=15.0, end_s=45.0)], STARTED_UNIX_S)
    assert [history.unheard_s(name) for name in "abcd"] == [20.0, 0.0, None, 35.0]
    assert history.unheard_s("nobody") is None
