import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollcast.services.errors import InvalidSpaceError
from rollcast.services.spaces.codec import (
    environment_spaces_from_proto,
    environment_spaces_to_proto,
    space_from_proto,
    space_to_proto,
)
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.v1 import space_pb2
from tests.rollouts import NESTED

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
BOUNDS = st.tuples(st.integers(-9, 9), st.integers(0, 9), st.sampled_from([np.float32, np.float64, np.int16, np.int64]))
LEAVES = st.one_of(
    st.builds(lambda shape, b: spaces.Box(b[0], b[0] + b[1], shape, b[2]), SHAPES, BOUNDS),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 99), st.integers(-9, 9)),
    st.builds(lambda shape: spaces.MultiBinary(list(shape) if len(shape) > 1 else shape[0]), SHAPES),
    st.builds(lambda shape: spaces.MultiDiscrete(np.full(shape, 3), start=np.full(shape, 2)), SHAPES),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3).map(
            lambda members: spaces.Dict(list(members.items()))
        ),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


@given(SPACES)
def test_round_trip(space):
    proto = space_pb2.Space.FromString(space_to_proto(space).SerializeToString())
    decoded = space_from_proto(proto)
    assert decoded == space
    assert space_to_proto(decoded) == proto


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 3.0]), dtype=np.float64),
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        spaces.Box(-(2**63), 2**63 - 2, (2,), np.int64),
        spaces.Box(0, 1, (), np.float32),
        spaces.Box(0, 1, (0, 3), np.float32),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete(np.array([[2, 3]]), dtype=np.int32),
    ],
)
def test_corners_round_trip(space):
    decoded = space_from_proto(space_to_proto(space))
    assert decoded == space
    assert decoded.dtype == space.dtype
    if isinstance(space, spaces.Box):
        np.testing.assert_array_equal(decoded.bounded_below, space.bounded_below)
        np.testing.assert_array_equal(decoded.low, space.low)


def test_a_constant_bound_travels_as_a_scalar():
    assert space_to_proto(spaces.Box(0, 255, (4, 84, 84), np.uint8)).ByteSize() < 40


def test_an_environment_round_trips_in_order():
    decoded = environment_spaces_from_proto(environment_spaces_to_proto(NESTED))
    assert decoded == NESTED
    assert list(decoded["0"].observation.spaces) == ["vector", "camera", "token", "pair"]


def test_rejects_more_agents_than_the_limit():
    (proto,) = environment_spaces_to_proto(
        {"a": SubstepSpaces(observation=spaces.Discrete(2), action=spaces.Discrete(2), n_agents=4096)}
    )
    assert environment_spaces_from_proto([proto])["a"].n_agents == 4096
    proto.n_agents = 4097
    with pytest.raises(InvalidSpaceError, match="'a' has 4097 agents; expected at most 4096"):
        environment_spaces_from_proto([proto])


def test_rejects_discrete_of_another_dtype():
    with pytest.raises(InvalidSpaceError, match="int32; expected int64"):
        space_to_proto(spaces.Discrete(3, dtype=np.int32))
