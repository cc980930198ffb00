import numpy as np

from rollcast.learner.replay.columns.memory import PendingRows
from rollcast.learner.replay.saving.row_guard import RowGuard, select


class Rows:
    """A store of one number a slot, as a guard sees it."""

    def __init__(self, n_slots: int) -> None:
        self.values = np.arange(n_slots)
        self.n_reads = 0

    def read(self, slots: np.ndarray) -> PendingRows:
        self.n_reads += 1
        copied = {"value": self.values.take(slots)}
        return lambda: copied


def test_snapshot_has_rows_as_of_its_beginning():
    rows, guard = Rows(6), RowGuard()
    guard.begin(np.array([True, True, True, True, False, True]))
    for slot in (1, 4, 1):
        guard.before_overwriting(np.array([slot]), rows.read)
        rows.values[slot] = -1
    found = {
        slot: value
        for slots, arrays in guard.take(np.arange(6), rows.read)
        for slot, value in zip(slots.tolist(), arrays()["value"].tolist(), strict=True)
    }
    assert found == {0: 0, 1: 1, 2: 2, 3: 3, 5: 5}, "and nothing of the slot that had no row"


def test_nothing_is_copied_without_a_snapshot_or_for_forgotten_slots():
    rows, guard = Rows(4), RowGuard()
    guard.before_overwriting(np.arange(4), rows.read)
    guard.begin(np.ones(4, bool))
    guard.forget(np.array([0, 1]))
    guard.before_overwriting(np.array([0, 1]), rows.read)
    assert rows.n_reads == 0
    guard.end()
    guard.before_overwriting(np.arange(4), rows.read)
    assert rows.n_reads == 0


def test_finds_pending_slots_that_wrap_around_the_end():
    guard = RowGuard()
    assert not guard.is_pending(0, 5)
    guard.begin(np.array([True, False, False, False, False]))
    assert guard.is_pending(0, 1)
    assert not guard.is_pending(1, 4)
    assert guard.is_pending(4, 2), "slot 0 follows the last"


def test_select_copies_only_if_some_rows_are_left_out():
    arrays = {"a": np.arange(3)}
    assert select(arrays, np.ones(3, bool)) is arrays
    assert select(arrays, np.array([True, False, True]))["a"].tolist() == [0, 2]
