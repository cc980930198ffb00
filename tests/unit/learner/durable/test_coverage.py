from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.queueing.queue import SliceName

NOTHING = Coverage()


def test_coverage_survives_json():
    coverage = Coverage(position=9, open_runs=((2, 3), (7, 7)), open_spans={3: ((1, 2),)})
    assert Coverage.from_json(coverage.to_json()) == coverage
    assert [coverage.open_of(number, 2) for number in (1, 2, 3, 7, 8, 9)] == [
        (),
        ((0, 2),),
        ((1, 2),),
        ((0, 2),),
        (),
        ((0, 2),),
    ]
    assert not NOTHING.has(0, 0)


def name(sequence: int, start: int = 0, stop: int = 4) -> SliceName:
    return SliceName("a", 1, sequence, start, stop)


def test_a_rollout_is_covered_when_training_has_used_all_its_trajectories():
    rollouts = OpenRollouts()
    for number in range(3):
        rollouts.add(number, name(number), 4)
    rollouts.cover(name(1))
    rollouts.cover(name(2, 1, 3))
    coverage = rollouts.coverage()
    assert coverage == Coverage(position=3, open_runs=((0, 0), (2, 2)), open_spans={2: ((0, 1), (3, 4))})
    assert [coverage.has(number, number) for number in range(4)] == [False, True, False, False]
    rollouts.cover(name(2, 0, 1))
    rollouts.cover(name(2, 3, 4))
    rollouts.cover(name(0))
    assert rollouts.coverage() == Coverage(position=3, open_runs=(), open_spans={})


def test_a_discarded_rollout_is_open_no_more():
    rollouts = OpenRollouts(position=5)
    rollouts.add(5, name(1), 4)
    rollouts.discard(name(1))
    assert rollouts.coverage() == Coverage(position=6, open_runs=(), open_spans={})
