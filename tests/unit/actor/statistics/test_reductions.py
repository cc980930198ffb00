import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.actor.statistics.reductions import MAX_KEPT, make_accumulator, named_reduction

pytestmark = pytest.mark.slow

REFERENCES = {
    "count": len,
    "sum": sum,
    "mean": statistics.fmean,
    "std": statistics.pstdev,
    "min": min,
    "max": max,
    "median": statistics.median,
}
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize("name", REFERENCES)
@given(pieces=st.lists(VALUES, min_size=1, max_size=5))
def test_reduces_pieces_to_the_value_of_the_whole(name: str, pieces: list[list[float]]):
    accumulator = make_accumulator(name)
    for piece in pieces:
        accumulator.extend(piece)
    whole = [value for piece in pieces for value in piece]
    assert accumulator.value() == pytest.approx(REFERENCES[name](whole), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("name", REFERENCES)
def test_value_without_values_is_zero_or_none(name: str):
    assert make_accumulator(name).value() == (0 if name in {"count", "sum"} else None)


def test_median_forgets_all_but_the_last_values():
    accumulator = make_accumulator("median")
    accumulator.extend([1e9] * MAX_KEPT)
    accumulator.extend([5.0] * MAX_KEPT)
    assert accumulator.value() == 5.0


def test_own_function_gets_all_values_and_its_numpy_scalar_becomes_a_number():
    accumulator = make_accumulator("own", lambda values: np.float32(max(values) - min(values)))
    accumulator.extend([1.0, 4.0])
    accumulator.extend([2.0])
    assert accumulator.value() == 3.0
    assert type(accumulator.value()) is float


@pytest.mark.parametrize(
    ("reduce", "name"),
    [
        ("median", "median"),
        (np.mean, "mean"),
        (statistics.pstdev, "std"),
        (sum, "sum"),
        (len, "count"),
        (sorted, "own"),
    ],
)
def test_knows_functions_by_their_reduction(reduce, name: str):
    assert named_reduction(reduce) == name
