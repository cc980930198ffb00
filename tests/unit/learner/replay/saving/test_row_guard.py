import numpy as np

from rollcast.learner.replay.columns.memory import PendingRows
from rollcast.learner.replay.saving.row_guard import RowGuard


class Rows:
    """A store of one number a slot, as a guard sees it."""

    def __init__(self, n_slots: int) -> None:
        self.values = np.arange(n_slots)
        self.n_reads = 0

    def read(self, slots: np.ndarray) -> PendingRows:
        self.n_reads += 1
        copied = {"value": self.values.take(slots)}
        return lambda: copied


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
