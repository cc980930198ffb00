import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.errors import InvalidSpaceError, InvalidTensorError
from rollcast.services.spaces.leaf_schema import LeafSchema, leaf_schema

AXES = ("t", "b")


def test_refuses_space_that_is_no_leaf():
    with pytest.raises(InvalidSpaceError, match="is not a leaf; expected Box, Discrete"):
        leaf_schema(spaces.Dict({"a": spaces.Discrete(2)}))


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (spaces.Box(-1, 1, (), np.float32), [[0.0, np.nan]], r"holds nan at \(t, b\) = \(0, 1\); expected finite"),
        (spaces.Box(-1, 1, (2,), np.float64), [[[0.0, np.inf]]], r"holds inf at \(t, b\) = \(0, 0\), element \[1\]"),
        (spaces.Discrete(3, start=-1), [[1, 2]], r"holds 2 at \(t, b\) = \(0, 1\); expected -1 to 1"),
        (spaces.MultiBinary(2), [[[0, 2]]], r"holds 2 .* expected 0 to 1"),
        (spaces.MultiDiscrete([2, 3]), [[[1, 3]]], r"holds 3 at .*, element \[1\]; expected 0 to 2; find its source"),
        (spaces.MultiDiscrete([[2, 3]], start=[[0, -1]]), [[[[2, 0]]]], r"holds 2 .*\[0, 0\]; expected 0 to 1"),
    ],
)
def test_refuses_value_outside_its_space_with_its_index(space: spaces.Space, values: list, message: str):
    schema = leaf_schema(space)
    with pytest.raises(InvalidTensorError, match=f"^the column {message}"):
        schema.check_values(np.array(values, schema.dtype), what="the column", axes=AXES)


def test_bounds_of_a_box_are_not_checked():
    schema = leaf_schema(spaces.Box(-1, 1, (), np.float32))
    schema.check_values(np.full((1, 2), 7, np.float32), what="the column", axes=AXES)


def test_finite_values_whose_sum_overflows_are_allowed():
    largest = np.finfo(np.float32).max
    values = np.full((1, 2), largest, np.float32)
    schema = LeafSchema(np.dtype(np.float32))
    with np.errstate(all="ignore"):
        assert not schema.are_surely_allowed(values)
    schema.check_values(values, what="the column", axes=AXES)


def test_refuses_byte_that_is_no_bool():
    values = np.array([[0, 2]], np.uint8).view(np.bool_)
    with pytest.raises(InvalidTensorError, match="the column holds the byte 2; expected 0 or 1"):
        LeafSchema(np.dtype(np.bool_)).check_values(values, what="the column", axes=AXES)


def test_only_floats_and_bools_of_one_dtype_are_checked_in_one_pass():
    float32, float64 = LeafSchema(np.dtype(np.float32)), LeafSchema(np.dtype(np.float64))
    discrete = leaf_schema(spaces.Discrete(3))
    assert float32.is_checked_like(LeafSchema(np.dtype(np.float32), (4,)))
    assert not float32.is_checked_like(float64)
    assert not discrete.is_checked_like(leaf_schema(spaces.Discrete(4)))
