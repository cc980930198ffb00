"""Lanes are sent whole the first time, then their new cells; a page that applies these has the lanes themselves."""

import base64

import numpy as np
import pytest

from rollcast.tools.dashboard.lane_changes import SentLanes, largest_states

RNG = np.random.default_rng(5)


def cells(n, width=3):
    return RNG.integers(0, 256, (n, width), np.uint8)


class Browser:
    """Applies changes as lanes.js does."""

    def __init__(self):
        self.lanes = {}

    def apply(self, changes, gone):
        for actor_id in gone:
            del self.lanes[actor_id]
        for actor_id, _kind, width, text in changes:
            new = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, width)
            before = self.lanes.get(actor_id)
            kept = before[len(new) :] if before is not None and before.shape[1] == width else new[:0]
            self.lanes[actor_id] = np.concatenate([kept, new])


@pytest.fixture
def sent():
    return SentLanes()


def n_cells_of(change):
    _, _, width, text = change
    return len(base64.b64decode(text)) // width


def test_sends_whole_lanes_at_first(sent):
    changes, gone = sent.changes({"": cells(10, 5), "a": cells(10)})
    assert [(change[0], change[1], n_cells_of(change)) for change in changes] == [
        ("", "learner", 10),
        ("a", "actor", 10),
    ]
    assert gone == []


def test_sends_nothing_of_a_lane_that_has_not_changed(sent):
    lane = cells(10)
    sent.changes({"a": lane})
    assert sent.changes({"a": lane.copy()}) == ([], [])


@pytest.mark.parametrize("shift", [1, 2, 5])
def test_sends_only_the_new_cells_of_a_lane_that_moves(sent, shift):
    both = cells(20)
    sent.changes({"a": both[:10]})
    changes, _ = sent.changes({"a": both[shift : 10 + shift]})
    assert [n_cells_of(change) for change in changes] == [shift]


def test_sends_a_lane_whole_that_has_moved_far_or_has_other_cells(sent):
    sent.changes({"a": cells(30), "b": cells(30)})
    changes, _ = sent.changes({"a": cells(30), "b": cells(30, 1)})
    assert [n_cells_of(change) for change in changes] == [30, 30]


def test_forgets_what_the_page_has_lost(sent):
    lane = cells(4)
    sent.changes({"a": lane})
    sent.forget()
    changes, _ = sent.changes({"a": lane})
    assert n_cells_of(changes[0]) == 4


def test_a_page_that_applies_all_changes_has_the_lanes(sent):
    browser = Browser()
    history = {name: cells(200, 3) for name in ("a", "b", "c")}
    at = 0
    for step in (0, 1, 1, 0, 3, 20, 2, 7, 8, 1):
        at += step
        lanes = {name: long[at : at + 60] for name, long in history.items() if not (name == "c" and step == 3)}
        browser.apply(*sent.changes(lanes))
        assert browser.lanes.keys() == lanes.keys()
        assert all(np.array_equal(browser.lanes[name], lane) for name, lane in lanes.items())


def test_the_largest_state_of_a_cell_is_counted_from_one():
    shares = np.array([[0, 200, 55], [255, 0, 0], [0, 0, 0]], np.uint8)
    assert largest_states(shares).tolist() == [[2], [1], [0]]
