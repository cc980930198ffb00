import dataclasses
import functools

import numpy as np
import pytest
from rich.cells import cell_len
from rich.text import Text

from rollcast.services.history.history import EventSeverity, HistoryEvent, HistoryUpdate, Lane, PolicyDelays
from rollcast.services.joining.activity import ActingState
from rollcast.services.status.status import ActorState, LearningFinding
from rollcast.tools.top.frame import frame
from rollcast.tools.watching.run_view import RunView
from rollcast.tools.watching.states import ACTING, UNKNOWN
from tests.documents import text_of
from tests.histories import RUN, actor, busy_run, lane, relayed_run, status, update, view_of

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e\nmessage\r漢字" * 9


def drawn(view: RunView, problem: str | None = None, *, width: int = 100, height: int | None = None) -> list[str]:
    return [line.plain for line in frame(view, problem, width=width, height=height, span_s=60.0)]


def rows(lines: list[str]) -> list[str]:
    """Returns the lines of the actors."""
    heading = next(index for index, line in enumerate(lines) if line.startswith("lanes "))
    return [line for line in lines[heading:] if line.startswith(("node-", "left-arm"))]


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(f"{name} "))


def hostile_run() -> HistoryUpdate:
    return update(
        60.0,
        run=dataclasses.replace(RUN, env_id=HOSTILE, run_dir=HOSTILE, algorithm=HOSTILE),
        status=status(waiting_for=HOSTILE, waiting_s=60.0, findings=(LearningFinding(HOSTILE, HOSTILE, HOSTILE),) * 3),
        actors=(
            actor(HOSTILE, 0, state=ActorState.FAILED, last_error=HOSTILE),
            actor("漢" * 60, 1),
            actor("", 2, idle_s=1e12),
            actor("behind", 3, via=(HOSTILE, "漢" * 60)),
            actor("lost", 4, state=ActorState.LOST, via=(HOSTILE,)),
        ),
        lanes=(lane(HOSTILE, [ActingState.ACTING] * 60),),
        events=(HistoryEvent(time_s=1.0, severity=EventSeverity.ERROR, who=HOSTILE, text=HOSTILE, detail=HOSTILE),),
    )


@functools.cache
def some_views() -> tuple[RunView, ...]:
    return (
        view_of(),
        view_of(busy_run()),
        view_of(busy_run(100)),
        view_of(relayed_run()),
        view_of(hostile_run()),
        view_of(update(0.0, run=RUN)),
    )


@pytest.mark.parametrize(
    ("width", "height"),
    # each height with two widths, low and narrow ones together
    [
        *((1, 1), (160, 1), (7, 2), (80, 2), (20, 5), (160, 5), (60, 14), (1, 14), (80, 20), (7, 20), (160, 30)),
        *((60, 30), (20, 60), (80, 60), (1, None), (160, None)),
    ],
)
def test_fits_any_terminal(width, height):
    for view in some_views():
        for problem in (None, HOSTILE):
            lines = drawn(view, problem, width=width, height=height)
            assert height is None or 0 < len(lines) <= height
            assert max(map(cell_len, lines)) <= width
            assert all(line.isprintable() for line in lines)


def test_fills_a_terminal_with_actors():
    lines = drawn(view_of(busy_run(200)), width=100, height=40)
    assert len(lines) == 40
    n_shown = len(rows(lines))
    assert f"{n_shown} of 200 shown, the worst off first" in lines
    assert n_shown > 15


def test_shows_all_actors_where_height_has_no_end():
    lines = drawn(view_of(busy_run(200)))
    assert len(rows(lines)) == 200
    assert not [line for line in lines if "shown" in line]


@pytest.mark.parametrize("state", [*ActingState, None])
@pytest.mark.parametrize("idle_s", [0.0, 3_000.0, 100_000.0])
def test_columns_stay_below_their_heading_whatever_the_state(state, idle_s):
    actors = (actor("zebra", 0, acting_state=state, idle_s=idle_s), *(actor(f"a{i}", i) for i in range(1, 9)))
    lines = drawn(view_of(update(60.0, run=RUN, actors=actors)))
    heading = next(line for line in lines if line.startswith("lanes"))
    assert len(row(lines, "zebra")) == len(heading)


def test_large_lags_share_a_bar_and_unknown_ones_are_a_dash():
    delays = PolicyDelays(trajectories_by_lag=(*[10] * 5, *[1] * 28))
    assert ">4:### 36 %" in "\n".join(drawn(view_of(dataclasses.replace(busy_run(), delays=delays)), width=200))
    assert "policy lag -" in "\n".join(drawn(view_of(update(0.0, run=RUN))))


def test_problem_is_shown_above_what_was_known_before():
    lines = drawn(view_of(busy_run()), "no learner answers at h:1")
    assert lines[1] == "No news: no learner answers at h:1"
    assert row(lines, "left-arm")


def test_before_the_first_update_only_the_problem_is_shown():
    assert drawn(RunView(), "training has not started") == ["rollcast", "No news: training has not started"]
    assert drawn(RunView()) == ["rollcast", "The learner has sent no status yet."]


def test_low_terminals_leave_out_the_legend_first():
    assert not [line for line in drawn(view_of(busy_run()), height=19) if "waiting for credit" in line]
    assert [line for line in drawn(view_of(busy_run()), height=24) if "waiting for credit" in line]


def test_narrow_terminals_leave_out_columns_and_keep_the_lanes():
    cells = row(drawn(view_of(busy_run()), width=45), "left-arm").split()
    assert len(cells) == 2
    assert len(cells[1]) > 30


def test_states_have_the_colours_of_the_legend():
    lines = frame(view_of(busy_run()), None, width=100, height=None, span_s=60.0)
    lane_of = next(line for line in lines if line.plain.startswith("node-1"))
    look = ACTING[ActingState.ACTING]
    assert (3 * look.letter, f"{look.ink} on {look.colour}") in styled(lane_of)
    legend = next(line for line in lines if "A acting" in line.plain)
    assert (look.letter, f"{look.ink} on {look.colour}") in styled(legend)


def styled(text: Text) -> set[tuple[str, str]]:
    return {(text.plain[span.start : span.end], str(span.style)) for span in text.spans}


def lane_of(shares: np.ndarray) -> str:
    """Returns the letters of an actor's lane, one for each second of a minute."""
    lanes = (Lane(actor_id="mixed", interval_s=1.0, end_s=60.0, shares=shares),)
    lines = drawn(view_of(update(60.0, run=RUN, actors=(actor("mixed"),), lanes=lanes)), width=115)
    return row(lines, "mixed").split()[1]


def test_shows_each_state_as_often_as_it_was():
    shown = lane_of(np.tile(np.array([[153, 77, 25, 0, 0, 0]], np.uint8), (60, 1)))
    assert len(shown) == 60
    assert [shown.count(ACTING[ActingState(n)].letter) for n in (1, 2, 3)] == pytest.approx([36, 18, 6], abs=1)


@pytest.mark.parametrize("seed", range(8))
def test_cell_shows_only_states_that_it_has(seed: int):
    rng = np.random.default_rng(seed)
    shares = np.where(rng.random((60, 6)) < 0.3, rng.integers(1, 255, (60, 6)), 0).astype(np.uint8)
    for cell, letter in zip(shares, lane_of(shares), strict=True):
        states = {ACTING[state].letter for state in ActingState if cell[state.value - 1]}
        assert letter in (states or {UNKNOWN.letter})


def test_actors_have_a_column_of_their_relays():
    lines = drawn(view_of(relayed_run()), width=120)
    assert row(lines, "lanes").split()[-2:] == ["steps", "via"]
    assert row(lines, "rack-1-0").endswith(" 2.0M rack-1        ")
    assert row(lines, "rack-3-0").endswith(" 2.0M rack-3, site-a")
    assert row(lines, "alone").endswith(" 2.0M               ")
    assert len({len(row(lines, name)) for name in ("lanes", "learner", "rack-1-0", "rack-3-0", "alone")}) == 1


def test_column_of_relays_leaves_narrow_terminals_and_is_cut_before():
    relayed = view_of(relayed_run())
    assert row(drawn(relayed, width=80), "rack-3-1").endswith(" 2.0M rack-3, sit…")
    assert "via" not in row(drawn(relayed, width=79), "lanes")


def test_low_terminals_show_the_relays_that_are_worst_off_and_leave_room_for_actors():
    relayed = view_of(relayed_run(250))
    lines = drawn(relayed, width=110, height=17)
    assert len(lines) == 17
    assert row(lines, "relays,").startswith("relays, 3 of 4 ")
    assert row(lines, "rack-2").endswith("all gone          ")
    assert [line for line in lines if line.startswith("rack-2-")]


def blocks_of_the_docs() -> list[list[str]]:
    page = text_of("monitor.md")
    return [block.partition("\n```")[0].splitlines() for block in page.split("```text\n")[1:]]


def test_docs_show_a_frame_as_it_is_drawn():
    shown = blocks_of_the_docs()[0]
    assert shown == [line.rstrip() for line in drawn(view_of(busy_run(12)), width=110, height=30)]


def test_docs_show_relays_as_they_are_drawn():
    lines = [line.rstrip() for line in drawn(view_of(relayed_run(250)), width=110, height=60)]
    begin = next(index for index, line in enumerate(lines) if line.startswith("relays "))
    assert blocks_of_the_docs()[1] == lines[begin : begin + 10]


def test_what_is_not_healthy_stands_below_the_sentence():
    found = tuple(LearningFinding("rule", f"finding {i}", "try --ppo.learning-rate") for i in range(3))
    lines = drawn(view_of(update(60.0, run=RUN, status=status(findings=found))))
    begin = lines.index("finding 0; try --ppo.learning-rate")
    assert begin == 2
    assert lines[begin + 1].startswith("finding 1;")
    assert not any("finding 2" in line for line in lines)
