import numpy as np
import pytest

from rollcast.learner.replay.columns.memory import Blocks, Span, write_rows

# Rows of a kilobyte are written one by one with those between them, rows of several not.
ROW_SHAPES = [(), (4,), (256, 4), (1025, 4)]


@pytest.mark.parametrize("shape", ROW_SHAPES)
def test_span_copies_values_from_its_source_steps(shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    values = rng.random((3, 2, *shape), np.float32)
    source = np.array([-1, 0, 2, 4, -1, -1, 1, 3, -1])
    column = np.zeros((12, *shape), np.float32)
    write_rows([column], Span(2, source), [values])
    for row, step in enumerate(source.tolist(), start=2):
        if step >= 0:
            np.testing.assert_array_equal(column[row], values[step // 2, step % 2])
    assert not column[:2].any()
    assert not column[11:].any()
    assert Span(2, source).rows(6).tolist() == [3, 8, 4, 9, 5, -1]


def test_blocks_are_written_step_by_step():
    column, values = np.zeros(9), np.arange(1.0, 5.0).reshape(2, 2)
    write_rows([column], Blocks(9, 3, np.array([2, 0])), [values])
    assert column.tolist() == [2, 4, 0, 0, 0, 0, 1, 3, 0]
    assert Blocks(9, 3, np.array([2, 0])).rows(2).tolist() == [[6, 0], [7, 1]]
