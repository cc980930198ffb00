"""The ledger of a learner in a process of its own has what was taken, in the order in which it was taken."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from rollcast.learner.batching.assembly import Assembly
from rollcast.learner.batching.collector import RolloutCollector
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.queueing.stale_trajectories import StaleTrajectories
from rollcast.services.columns.shape import RolloutShape
from tests.chaos.bookkeeping import bookkeeping_spaces
from tests.chaos.learning import Record, record_learning
from tests.chaos.lineage import Lineage
from tests.unit.chaos.test_ledger import SEEDS, played

N_STEPS = 5


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    record = Record(tmp_path / "record")
    record_learning(record)
    yield record
    patch.stopall()


def test_a_stale_rollout_keeps_its_place_among_those_of_a_batch(record: Record, tmp_path: Path):
    newest, of_an_earlier_learner = 1, 2
    queue = RolloutQueue(4 * len(SEEDS))
    collector = RolloutCollector(
        queue,
        Arrivals(queue),
        StaleTrajectories(None),
        policy_version=lambda: newest,
        keeps_newer=False,
        note_taken=lambda rollout: None,
        note_dropped=lambda piece: None,
    )
    assembly = Assembly(
        RolloutShape(bookkeeping_spaces(), N_STEPS, state_size=3, frame_stack=3),
        batch_size=3 * len(SEEDS),
        copier=make_copier("cpu"),
    )
    for sequence, version in ((1, newest), (2, of_an_earlier_learner), (3, newest), (4, newest)):
        rollout = dataclasses.replace(played(sequence, N_STEPS), policy_version=version)
        assert queue.put(rollout, is_active=lambda: True)
    while assembly.n_missing:
        piece = collector.get(assembly.n_missing, 0.0)
        if piece is not None:
            assembly.add(piece)
    assembly.finish().ready()
    record.write_coming()

    lineage = Lineage(tmp_path / "record", durable=False)
    lineage.close()
    assert lineage.entries.all() == []
    assert (lineage.n_learnt, lineage.n_stale) == (3 * len(SEEDS), len(SEEDS))
