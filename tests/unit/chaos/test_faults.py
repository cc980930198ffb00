import random

import pytest

from tests.chaos.faults import KINDS, KINDS_OF_CLIENTS, Fault, draw_faults
from tests.chaos.learner_faults import LEARNER_KINDS, draw_learner_faults
from tests.chaos.ledger import Entries
from tests.chaos.report import Recovery, Report, summary


@pytest.mark.parametrize(("draw", "kinds"), [(draw_faults, KINDS), (draw_learner_faults, LEARNER_KINDS)])
def test_the_same_seed_draws_the_same_faults(draw, kinds):
    drawn = [draw(200, random.Random(seed), short=False) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {fault.kind for fault in drawn[0]} == set(kinds)


def test_a_seed_draws_the_same_in_every_process():
    """The order of a set of strings differs between processes, and is to have no effect."""
    drawn = draw_faults(8, random.Random(1), short=False, only=KINDS_OF_CLIENTS)
    assert [fault.kind for fault in drawn] == [
        "freeze",
        "flip_turn",
        "stall",
        "delay",
        "cut",
        "cut",
        "half_close",
        "black_hole",
    ]


def test_short_runs_have_nothing_that_takes_long():
    faults = draw_faults(500, random.Random(0), short=True)
    assert all(fault.seconds <= 3 and fault.kind not in {"black_hole", "garble", "inflate"} for fault in faults)


def test_kinds_can_be_chosen():
    assert {fault.kind for fault in draw_faults(20, random.Random(0), short=True, only=["garble"])} == {"garble"}


def test_a_report_is_a_table_and_clean_only_without_entries():
    cut, kill = Fault("cut", 0.0, 0.1), Fault("kill", 0.0, 0.1)
    recoveries = [Recovery("a", cut, 0.5), Recovery("a", cut, 2.5), Recovery("b", kill, None)]
    report = Report("queue", 3, recoveries, n_rollouts=9, hangs=["b: kill, and no rollout for 90 s"])
    text = str(report)
    assert not report.is_clean
    assert "cut                   2          2      2.50       2.50" in text
    assert "kill                  1          0         -          -" in text
    assert "hang: b: kill" in text
    assert Report("queue", 3, recoveries[:2]).is_clean
    assert not Report("queue", 3, entries=Entries(lost=["rollout 1 of a"])).is_clean
    assert not Report("queue", 3, failures=["the learner ended by itself, with 1"]).is_clean


def test_the_summary_has_a_line_for_each_suite_and_their_sum():
    cut, kill = Fault("cut", 0.0, 0.1), Fault("kill", 0.0, 0.1)
    queue = Report("queue", 3, [Recovery("a", cut, 0.5), Recovery("b", kill, None)], hangs=["b"], seconds=4.0)
    sac = Report("sac", 3, [Recovery("a", cut, 2.5)], entries=Entries(lost=["rollout 1 of a"]), seconds=5.0)
    _, *lines = (line.split() for line in summary([queue, sac]).splitlines())
    assert lines == [
        ["queue", "2", "1", "0.50", "0", "0", "0", "0", "1", "0", "4"],
        ["sac", "1", "1", "2.50", "1", "0", "0", "0", "0", "0", "5"],
        ["all", "3", "2", "2.50", "1", "0", "0", "0", "1", "0", "9"],
    ]


def test_short_faults_of_a_learner_of_a_kind_that_is_chosen():
    only = draw_learner_faults(50, random.Random(0), short=True, only=["learner_freeze"])
    assert {fault.kind for fault in only} == {"learner_freeze"}
    assert all(fault.seconds <= 3 for fault in only)
