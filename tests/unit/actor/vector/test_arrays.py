import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from rollcast.actor.vector.arrays import Buffer, EnvironmentArrays, InvalidValueError, SpaceArrays

DTYPES = st.sampled_from([np.float32, np.float64, np.uint8, np.int32])
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)

LEAVES = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), SHAPES, DTYPES),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
    st.builds(spaces.MultiBinary, st.lists(st.integers(1, 3), min_size=1, max_size=2)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=3)),
)
SPACES = st.recursive(
    LEAVES,
    lambda members: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), members, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(members, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def arrays_of(space, n_envs=3):
    counter = Buffer(None)
    SpaceArrays(space, n_envs, counter, "observation")
    return SpaceArrays(space, n_envs, Buffer(bytearray(counter.n_bytes)), "observation")


def assert_same(left, right):
    if isinstance(right, dict):
        assert list(left) == list(right)
        for key, value in right.items():
            assert_same(left[key], value)
    elif isinstance(right, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(left, right)
        assert np.asarray(left).dtype == np.asarray(right).dtype


@pytest.mark.slow
@given(SPACES, st.integers(0, 2**31))
def test_what_is_put_is_found_and_stacked_as_gymnasium_does(space, seed):
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    arrays = arrays_of(space)
    for index, value in enumerate(values):
        arrays.put(index, value)
    for index, value in enumerate(values):
        assert_same(arrays.get(index), value)
    stacked = concatenate(space, values, create_empty_array(space, 3))
    assert_same(arrays.all(copy=True), stacked)
    assert_same(arrays.all(copy=False), stacked)


@pytest.mark.slow
@given(SPACES, st.integers(0, 2**31))
def test_batches_come_apart_again(space, seed):
    batched = batch_space(space, 3)
    batched.seed(seed)
    values = batched.sample()
    arrays = arrays_of(space)
    arrays.put_all(values)
    assert_same(arrays.some(np.arange(3)), values)
    others = batch_space(space, 2)
    others.seed(seed + 1)
    some = others.sample()
    arrays.put_some(np.array([2, 0]), some)
    assert_same(arrays.some(np.array([2, 0])), some)


@pytest.mark.slow
@given(SPACES, SPACES)
def test_nothing_overlaps(observation_space, action_space):
    memory = bytearray(EnvironmentArrays.n_bytes(observation_space, action_space, 3))
    arrays = EnvironmentArrays(observation_space, action_space, 3, Buffer(memory))
    observation, action = observation_space.sample(), action_space.sample()
    for index in range(3):
        arrays.observation.put(index, observation)
        arrays.action.put(index, action)
    arrays.reward[:] = -1
    arrays.terminated[:] = arrays.truncated[:] = arrays.resets[:] = True
    arrays.seed[:] = arrays.episode_length[:] = -1
    arrays.episode_return[:] = -1
    for index in range(3):
        assert_same(arrays.observation.get(index), observation)
        assert_same(arrays.action.get(index), action)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(0, 1, (2,), np.int32), np.zeros(2), r"the observation is float64\[2\]; expected int32\[2\]"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, int), r"is int64\[2\]; expected uint8\[2\]"),
        (spaces.Box(0, 1, (2,), np.float32), np.zeros(3, np.float32), r"is float32\[3\]; expected float32\[2\]"),
        (spaces.Box(0, 1, (2,), np.float32), [0.0, 1.0, 2.0], r"is float64\[3\]; expected float32\[2\]"),
        (spaces.Box(0, 1, (2,), np.float32), [[0.0], [1.0, 2.0]], r"is a list; expected float32\[2\]"),
        (spaces.Box(0, 1, (2,), np.float32), ["0", "1"], r"is <U1\[2\]; expected float32\[2\]"),
        (spaces.Box(0, 1, (2,), np.float32), np.float32(0), r"is float32\[\]; expected"),
        (spaces.Discrete(3), 1.5, r"is a float; expected int64\[\]"),
        (spaces.Discrete(3), np.array([1]), r"is int64\[1\]"),
        (spaces.Discrete(3), None, r"is a NoneType"),
        (spaces.MultiBinary(2), np.zeros(2), r"is float64\[2\]; expected int8\[2\]"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, r"has no leaf 'a' \(dict: 'a'\)"),
        (spaces.Dict({"a": spaces.Discrete(2)}), 1, r"has no leaf 'a'"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (1,), r"has no leaf '1'"),
        (spaces.Tuple([spaces.Discrete(2)]), (None,), r"leaf '0' of the observation is a NoneType"),
    ],
)
def test_what_is_not_as_the_space_says(space, value, message):
    with pytest.raises(InvalidValueError, match=message):
        arrays_of(space).put(0, value)


@pytest.mark.parametrize("value", [np.array([0.5, 2.0]), [0.5, 2.0], (0.5, 2), np.array([0.5, 2.0], np.float16)])
def test_numbers_of_the_same_kind_are_taken_as_gymnasium_takes_them(value):
    space = spaces.Box(0, 9, (2,), np.float32)
    arrays = arrays_of(space)
    arrays.put(1, value)
    expected = concatenate(space, [value] * 3, create_empty_array(space, 3))
    assert_same(arrays.get(1), expected[1])


def test_numbers_of_pythons_own_and_other_integers_are_taken():
    arrays = arrays_of(spaces.Dict({"n": spaces.Discrete(9), "x": spaces.Box(0, 9, (), np.float32)}))
    arrays.put(0, {"n": 3, "x": 2.5})
    arrays.put(1, {"n": np.uint8(4), "x": np.array(1, np.float32)})
    assert arrays.get(0) == {"n": 3, "x": 2.5}
    assert arrays.get(1) == {"n": 4, "x": 1}


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (spaces.Discrete(3), [0, 1], r"the observations are int64\[2\]; expected int64\[3\]"),
        (spaces.Discrete(3), [0.5, 1, 1], r"are float64\[3\]"),
        (spaces.Box(0, 1, (2,)), np.zeros(3), r"are float64\[3\]; expected float32\[3, 2\]"),
        (spaces.Box(0, 1, (2,)), ["a", "b", "c"], r"expected float32"),
    ],
)
def test_batches_that_are_not_as_the_space_says(space, values, message):
    with pytest.raises(InvalidValueError, match=message):
        arrays_of(space).put_all(values)


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (spaces.Discrete(3), [0, 3, 1], r"the observation holds 3 at \(env\) = \(1\); expected 0 to 2; give values"),
        (spaces.Discrete(3, start=-1), [0, 1, -2], r"holds -2 at \(env\) = \(2\); expected -1 to 1"),
        (spaces.MultiDiscrete([2, 5]), [[1, 4], [1, 4], [2, 4]], r"holds 2 at \(env\) = \(2\), element \[0\]"),
        (spaces.MultiBinary(2), [[0, 1], [256, 1], [0, 0]], r"holds 256 at .* expected 0 to 1"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": [0, -1, 0]}, r"leaf 'a' of the observation holds -1"),
    ],
)
def test_batches_with_a_value_outside_a_discrete_space_are_refused(space, values, message):
    arrays = arrays_of(space)
    with pytest.raises(InvalidValueError, match=message):
        arrays.put_all(values)
    with pytest.raises(InvalidValueError, match=message):
        arrays.put_some(np.array([2, 0, 1]), values)
