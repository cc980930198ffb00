import io
import re
import threading
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from rich.console import Console

from rollcast.learner.writers.console import ConsoleView, print_above
from rollcast.services.status.status import EvaluationStatus, LearnerStatus, LearningFinding, Phase
from tests.processes import DEADLINE_S

STATUS = LearnerStatus(
    phase=Phase.TRAINING,
    env_steps=1_234_567,
    seconds=83.4,
    env_steps_per_second=312_345.6,
    updates=603,
    updates_per_second=152.3,
    policy_version=604,
    policy_lag_mean=1.23,
    policy_lag_max=4,
    queue_size=17,
    queue_capacity=64,
    actors_alive=1,
    actors_expected=2,
    episodes=12_345,
    mean_return=312.4,
    run_dir="runs/one",
    waiting_fraction=0.12,
    algorithm="impala",
)


def screen_of(status: LearnerStatus, *, terminal: bool = True, **goals: object) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    with ConsoleView(lambda: status, console, refresh_interval_s=60.0, plain_interval_s=60.0, **goals):
        pass
    return console.file.getvalue()


def last_view(screen: str) -> str:
    """The text that a terminal of 80 columns shows at the end."""
    last = screen[screen.rindex("rollcast") :]
    assert max(len(line) for line in last.splitlines()) <= 80
    return last


def test_a_terminal_shows_everything_in_80_columns():
    screen = screen_of(STATUS, stop_return=475.0, total_steps=20_000_000)
    for part in (
        "impala  training", "1:23", "312.4", "1/2",
        "12,345", "1,234,567", "312,346", "17/64", "603", "152", "12 %", "v604",
        "1.23", "lag max", "to return", "475", "to steps", "20,000,000", "runs/one",
    ):  # fmt: skip
        assert part in screen
    last_view(screen)


def test_a_line_that_is_printed_beside_the_view_stays_above_it():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with ConsoleView(lambda: STATUS, console, refresh_interval_s=60.0) as view:
        view.show(STATUS)
        line = "environments may dial in at [::1]:50052 " + 50 * "x"
        print_above(console, line)
        view.show(STATUS)
    assert screen_after(console.file.getvalue())[0] == line


def screen_after(written: str) -> list[str]:
    """Returns the lines that a wide terminal shows after it has got a text with the sequences of the view."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[?0-9]*[a-zA-Z]|\r|\n)", written):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_the_terminal_is_left_as_it_was():
    screen = screen_of(STATUS)
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert screen.endswith("\x1b[?25h")
    console = Console(file=io.StringIO(), force_terminal=True)

    def fail() -> None:
        with ConsoleView(lambda: STATUS, console):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert console.file.getvalue().endswith("\x1b[?25h")


def test_what_it_waits_for_takes_the_last_line_and_the_height_stays():
    waiting = replace(STATUS, waiting_for="rollouts: no actor has joined " + "yet " * 30, waiting_s=12.0)
    lines = screen_of(waiting).splitlines()
    assert "waiting 12 s for rollouts: no actor has joined" in lines[-2] + lines[-1]
    assert len(lines) == len(screen_of(STATUS).splitlines())


FOUND = tuple(
    LearningFinding(f"rule-{i}", f"the critic learns nothing\x1b useful {i}", "try --ppo.normalize-rewards, or " * 3)
    for i in range(5)
)


def test_what_is_not_healthy_stands_above_the_last_line():
    screen = screen_of(replace(STATUS, findings=FOUND))
    last = last_view(screen)
    shown = [f"useful {i}; try --ppo.normalize-rewards" in " ".join(last.split()) for i in range(5)]
    assert shown == [True, True, True, False, False]
    assert "nothing\\x1b useful" in last
    assert "runs/one" in last.splitlines()[-2] + last.splitlines()[-1]


def test_without_a_terminal_each_finding_is_told_once():
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with ConsoleView(lambda: STATUS, console, plain_interval_s=60.0) as view:
        for findings in ((), FOUND[:1], FOUND[:2], FOUND[:2]):
            view.show(replace(STATUS, findings=findings))
    told = [line for line in console.file.getvalue().splitlines() if line.startswith("learning: ")]
    expected = [f"learning: the critic learns nothing\\x1b useful {i}" for i in range(2)]
    assert [line.partition(";")[0] for line in told] == expected


def test_before_the_first_episode_and_goals_that_are_no_fraction():
    nothing = LearnerStatus(phase=Phase.STARTING)
    assert "starting" in screen_of(nothing, stop_return=475.0)
    assert "-100" in screen_of(replace(STATUS, mean_return=-150.0), stop_return=-100.0)
    assert "0" in screen_of(STATUS, stop_return=0.0)


STATISTICS = {f"parcel_delivered/mean_minutes[{zone}]": 11.84 + zone for zone in range(13)} | {"parcels": 1234567}


def test_statistics_of_events_have_rows_of_their_own():
    screen = screen_of(STATUS, statistics=lambda: STATISTICS)
    assert "parcel_delivered/mean_minutes[0]" in screen
    assert "11.84" in screen
    assert "parcel_delivered/mean_minutes[9]" not in screen
    assert "and 2 more in the metrics" in screen
    last_view(screen)


def test_statistics_of_events_are_a_line_without_a_terminal():
    lines = screen_of(STATUS, terminal=False, statistics=lambda: {"a/b[c]": 0.123456, "n": 1234567.0})
    assert lines.splitlines()[-1] == "a/b[c] 0.1235  n 1,234,567"


def test_without_a_terminal_it_is_lines_without_escapes():
    lines = screen_of(replace(STATUS, waiting_for="rollouts", waiting_s=3.0), terminal=False)
    assert "\x1b" not in lines
    told_at, line = re.fullmatch(r"(\S+ \S+)  (.*)", lines.splitlines()[-1]).groups()
    assert abs(datetime.now() - datetime.strptime(told_at, "%Y-%m-%d %H:%M:%S")) < timedelta(hours=1)
    assert line == (
        "1:23 training  return 312.4  1,234,567 steps 312,346/s  updates 152/s  policy 604 lag 1.2/4  queue 17/64  "
        "actors 1/2  waiting 3 s for rollouts"
    )


def test_while_nothing_moves_each_line_comes_after_twice_the_time():
    asked = []
    moved, over = threading.Event(), threading.Event()

    def status() -> LearnerStatus:
        asked.append(None)
        if len(asked) == 200:
            moved.set()
        if len(asked) == 210:
            over.set()
        return replace(STATUS, waiting_for="rollouts", waiting_s=len(asked), env_steps=int(moved.is_set()))

    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with ConsoleView(status, console, plain_interval_s=0.001):
        assert over.wait(DEADLINE_S)
    lines = [line for line in console.file.getvalue().splitlines() if "waiting" in line]
    still = [int(re.search(r"waiting (\d+) s", line)[1]) for line in lines if " 0 steps" in line]
    assert still[0] == 1
    # twenty of them would take a quarter of an hour
    assert 2 <= len(still) < 20, still
    assert " 1 steps" in lines[len(still)], "what moves is told"
    assert int(re.search(r"waiting (\d+) s", lines[len(still)])[1]) == 200, "at once"


def test_less_than_an_update_a_second_is_not_shown_as_none():
    assert "updates 0.25/s" in screen_of(replace(STATUS, updates_per_second=0.25), terminal=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_it_asks_again_and_again_and_once_more_at_the_end(terminal):
    asked_three_times = threading.Event()
    phase, seen = Phase.TRAINING, []

    def status() -> LearnerStatus:
        seen.append(phase)
        if len(seen) == 3:
            asked_three_times.set()
        return replace(STATUS, phase=phase)

    console = Console(file=io.StringIO(), force_terminal=terminal)
    with ConsoleView(status, console, refresh_interval_s=0.001, plain_interval_s=0.001):
        assert asked_three_times.wait(DEADLINE_S)
        phase = Phase.FINISHED
    assert seen[-1] is Phase.FINISHED
    assert "finished" in console.file.getvalue()
    assert not any(thread.name == "rollcast-console" for thread in threading.enumerate())


def bars_of(*returns: float | None, stop_return: float) -> list[int]:
    """Returns the length of the bar to the return after each, of 52."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    statuses = [replace(STATUS, mean_return=value) for value in returns]
    bars = []
    with ConsoleView(lambda: statuses[0], console, stop_return=stop_return, refresh_interval_s=60.0) as view:
        for status in statuses:
            view.show(status)
            (row,) = [line for line in console.file.getvalue().splitlines() if "to return" in line][-1:]
            assert row.count("#") + row.count(".") == 52
            bars.append(row.count("#"))
    return bars


@pytest.mark.parametrize(
    ("returns", "stop_return", "bars"),
    [
        ((None, -88.0, 456.0, 1000.0), 1000.0, [0, 0, 26, 52]),
        ((-200.0, -150.0, -100.0), -100.0, [0, 26, 52]),
        ((20.0, 10.0), 475.0, [0, 0]),
        ((500.0, 400.0), 475.0, [52, 0]),
    ],
)
def test_the_bar_to_the_return_begins_at_the_first(returns, stop_return: float, bars: list[int]):
    assert bars_of(*returns, stop_return=stop_return) == bars


EVALUATED = EvaluationStatus(
    evaluators_alive=1, evaluations=7, policy_version=600, mean_return=410.25, ci_low=390.0, ci_high=430.5,
    best_policy_version=512, best_mean_return=498.75,
)  # fmt: skip


def test_evaluation_is_shown_in_80_columns_and_fills_the_bar_of_its_goal():
    screen = screen_of(replace(STATUS, evaluation=EVALUATED), stop_return=498.0, stops_on_evaluation=True)
    last = last_view(screen)
    for part in ("eval", "410.2", "best", "498.8", "evals", "7"):
        assert part in last
    plain = screen_of(replace(STATUS, evaluation=EVALUATED), terminal=False)
    assert "return 312.4  eval 410.2 +/- 20.2 best 498.8" in plain


def test_evaluator_that_failed_is_shown_with_its_reason():
    failed = EvaluationStatus(last_error="ValueError: no \x1b licence")
    screen = screen_of(replace(STATUS, evaluation=failed))
    assert "none runs" in screen
    assert "the evaluator failed: ValueError: no \\x1b licence" in screen
    plain = screen_of(replace(STATUS, evaluation=failed), terminal=False)
    assert "eval - (the evaluator failed: ValueError: no \\x1b licence)" in plain
