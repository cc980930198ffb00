"""The oracle of ranks notices what it is there to notice, and allows what may be."""

import json
from pathlib import Path

import pytest

from tests.chaos.ranks import RankLineages, compare_sessions, read_sessions

SEEDS = (11, 12)
BEFORE = (["started"], ["session", "a"], ["cast", 1, "aa"], ["cast", 2, "bb"])


def record(path: Path, *lines: list[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def taken(*sequences: int) -> list[list[object]]:
    return [["taken", "a", 1, sequence, SEEDS] for sequence in sequences]


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ([["resumed", 1.5, 7], ["cast", 2, "xx"], ["cast", 3, "cc"]], []),
        # it has died before it went on
        ([], []),
        ([["resumed", 1.5, 6], ["cast", 2, "xx"]], ["rank 0 went on after 7 updates, 1 after 6"]),
        ([["resumed", 1.5, 7], ["cast", 3, "cc"]], ["rank 0 began with version 2, 1 with 3"]),
        (
            [["resumed", 1.5, 7], ["cast", 2, "xx"], ["cast", 3, "zz"]],
            [
                "ranks 0 and 1, which went on after 7 updates, sent 1 of 2 versions with other weights, "
                "the first of them 3"
            ],
        ),
    ],
)
def test_ranks_of_one_session_go_on_from_one_checkpoint_with_one_policy(
    after: list[list[object]], found: list[str], tmp_path: Path
):
    own = (["started"], ["session", "b"], ["resumed", 0.5, 7], ["cast", 2, "xx"], ["cast", 3, "cc"])
    records = (
        record(tmp_path / "0", *BEFORE, *own),
        record(tmp_path / "1", *BEFORE, ["started"], ["session", "b"], *after),
    )
    differences, n_compared = compare_sessions([read_sessions(path) for path in records])
    assert differences == found
    assert n_compared == 2 + sum(line[0] == "cast" for line in after)


@pytest.mark.parametrize(
    ("elsewhere", "acknowledged", "found"),
    [
        # an actor that moves goes on where the other rank was told to
        ([["joined", "a", 1, 2], *taken(3, 4)], 4, []),
        ([["joined", "a", 1, 2], *taken(3, 4)], 5, ["lost", "lost"]),
        ([["joined", "a", 1, 3], *taken(4)], 4, ["lost", "lost"]),
        ([["joined", "a", 1, 1], *taken(2, 3)], 3, ["duplicated", "duplicated"]),
        ([], 2, []),
    ],
)
def test_all_ranks_together_have_every_rollout_once(
    elsewhere: list[list[object]], acknowledged: int, found: list[str], tmp_path: Path
):
    records = [
        record(tmp_path / "0", ["started"], ["joined", "a", 1, 0], *taken(1, 2)),
        record(tmp_path / "1", ["started"], *elsewhere),
    ]
    lineages = RankLineages(records)
    lineages.close()
    lineages.check({"a": {1: acknowledged}})
    assert [entry.split(":")[0] for entry in lineages.entries.all()] == found
    assert lineages.n_taken == lineages.count("a") == 2 + len(elsewhere[1:])


def test_what_nobody_has_of_an_acknowledged_actor_is_lost(tmp_path: Path):
    lineages = RankLineages([record(tmp_path / "0", ["started"])])
    lineages.close()
    lineages.check({"a": {1: 2, 2: 0}})
    assert [entry.split(",")[0] for entry in lineages.entries.lost] == ["rollouts [1"]
