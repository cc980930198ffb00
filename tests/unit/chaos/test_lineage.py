"""The oracle of learners that die notices what it is there to notice, and allows what may be."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.lineage import Lineage

SEEDS = (11, 12)


def taken(*sequences: int) -> list[list[object]]:
    return [["taken", "a", 1, sequence, SEEDS] for sequence in sequences]


def lineage_of(path: Path, *lines: list[object], durable: bool = False, forgiven: int | None = None) -> Lineage:
    path = path / "record"
    path.unlink(missing_ok=True)
    lineage = Lineage(path, durable=durable)
    if forgiven is not None:
        lineage.forgive({"a": {1: forgiven}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lineage.close()
    return lineage


BEFORE = (["started"], ["joined", "a", 1, 0], *taken(1, 2), ["snapshot"], ["saved", 1.5], *taken(3, 4))
AFTER = (["started"], ["resumed", 1.5])


def test_what_was_learnt_after_the_checkpoint_is_rolled_back_and_may_be_learnt_again(tmp_path: Path):
    lineage = lineage_of(tmp_path, *BEFORE, *AFTER, ["joined", "a", 1, 2], *taken(3, 4, 5))
    assert lineage.entries.all() == []
    assert (lineage.n_rolled_back, lineage.n_skipped, lineage.n_learnt) == (4, 0, 10)
    assert (lineage.count("a"), lineage.n_taken, lineage.n_lives) == (7, 7, 2)


def test_what_was_acknowledged_may_be_skipped_unless_acknowledgements_last(tmp_path: Path):
    lines = (*BEFORE, *AFTER, ["joined", "a", 1, 4], *taken(5))
    lineage = lineage_of(tmp_path, *lines)
    assert (lineage.entries.all(), lineage.n_skipped) == ([], 4)
    durable = lineage_of(tmp_path, *lines, durable=True)
    assert len(durable.entries.lost) == len(SEEDS)


def test_what_a_damaged_log_had_may_be_missing_in_every_line_that_goes_on_from_before(tmp_path: Path):
    lines = (*BEFORE, *AFTER, *taken(5), *AFTER, ["joined", "a", 1, 4], *taken(5))
    lineage = lineage_of(tmp_path, *lines, durable=True, forgiven=4)
    lineage.check_acknowledged("a", {1: 6})
    assert (lineage.entries.all(), lineage.n_skipped) == ([], 9)
    assert len(lineage_of(tmp_path, *BEFORE, *taken(8), durable=True, forgiven=4).entries.lost) == len(SEEDS)
    lineage = lineage_of(tmp_path, *BEFORE, durable=True, forgiven=4)
    lineage.check_acknowledged("a", {1: 7})
    assert len(lineage.entries.lost) == 1


def test_a_checkpoint_has_what_was_learnt_up_to_its_snapshot_whenever_it_is_named(tmp_path: Path):
    named_late = (["started"], *taken(1, 2), ["snapshot"], *taken(3), ["saved", 1.5], *AFTER, *taken(3))
    named_early = (["started"], *taken(1, 2), ["saved", 1.5], *taken(3), ["snapshot"], *AFTER, *taken(4))
    for lines in (named_late, named_early):
        assert lineage_of(tmp_path, *lines).entries.all() == []


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("duplicated", (*taken(2),)),
        ("duplicated", (*AFTER, *taken(2))),
        ("disordered", (*taken(6),)),
        ("disordered", (*AFTER, ["joined", "a", 1, 4], *taken(6))),
        ("disordered", (*AFTER, ["joined", "a", 1, 4], *taken(5), *taken(7))),
        ("lost", (["started"], *taken(1))),
        ("corrupt", (["started"], ["resumed", 7.0])),
        ("corrupt", (["corrupt", "a batch has other rewards than its rollouts"],)),
    ],
)
def test_what_may_not_be_is_noted(tmp_path: Path, kind: str, lines: tuple[list[object], ...]):
    assert getattr(lineage_of(tmp_path, *BEFORE, *lines).entries, kind)


def test_an_entry_has_the_lines_that_it_rests_on(tmp_path: Path):
    lineage = lineage_of(tmp_path, *BEFORE, ["stale", "a", 1, 6, [11]], ["taken", "a", 1, 5, [11]])
    (disordered,), (duplicated,) = lineage.entries.disordered, lineage.entries.duplicated
    before, stale, taken = (
        'line 8: ["taken", "a", 1, 4, [11, 12]]',
        'line 9: ["stale", "a", 1, 6, [11]]',
        'line 10: ["taken", "a", 1, 5, [11]]',
    )
    assert [line.strip() for line in disordered.splitlines()[1:]] == [before, stale]
    assert [line.strip() for line in duplicated.splitlines()[1:]] == [stale, taken]
    lineage = lineage_of(tmp_path, *BEFORE, *AFTER, ["joined", "a", 1, 4], ["taken", "a", 1, 6, [11]])
    assert [line.strip() for line in lineage.entries.disordered[0].splitlines()[1:]] == [
        'line 4: ["taken", "a", 1, 2, [11, 12]]',
        'line 11: ["joined", "a", 1, 4]',
        'line 12: ["taken", "a", 1, 6, [11]]',
    ]


def test_lasting_acknowledgements_are_all_there_in_the_end(tmp_path: Path):
    for durable in (False, True):
        lineage = lineage_of(tmp_path, *BEFORE, durable=durable)
        lineage.check_acknowledged("a", {1: 6, 2: 1})
        assert len(lineage.entries.lost) == 2 * durable
    assert lineage_of(tmp_path, *BEFORE, durable=True).entries.all() == []


def test_the_buffer_has_every_step_that_was_taken_once_and_no_other(tmp_path: Path):
    lines = (*BEFORE, *AFTER, ["joined", "a", 1, 3], *taken(4), ["stale", "a", 1, 5, [11]])
    first, second = np.array([0, 1, 2, 3, 6, 7]), np.array([0, 1, 2, 3, 6, 7])
    lineage = lineage_of(tmp_path, *lines)
    lineage.check_steps({11: first, 12: second}, 2)
    assert lineage.entries.all() == []
    assert (lineage.n_stale, lineage.n_skipped) == (1, 2)
    for kind, wrong in (
        ("lost", first[:-1]),
        ("duplicated", np.array([0, 0, 1, 2, 3, 6, 7])),
        ("disordered", first[::-1]),
        ("corrupt", np.arange(8)),
    ):
        lineage = lineage_of(tmp_path, *lines)
        lineage.check_steps({11: wrong, 12: second}, 2)
        assert getattr(lineage.entries, kind), kind
    lineage.check_steps({99: first}, 2)
    assert "steps of an unknown environment 99" in lineage.entries.corrupt
