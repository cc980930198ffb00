import numpy as np
import pytest

from rollcast.learner.replay.saving.part_state import GeneratorPart, PartState, join


def test_join_keeps_parts_apart():
    joined = join({"a": PartState({"x": np.arange(2)}, {"n": 1}), "b": PartState({"x": np.arange(3)}, {"n": 2})})
    assert sorted(joined.arrays) == ["a.x", "b.x"]
    part = joined.part("b")
    assert part.values == {"n": 2}
    assert part.arrays["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [-1, 11, 2.0, "3", None])
def test_rejects_values_that_are_not_whole_numbers_in_range(value: object):
    state = PartState(values={"n": value})
    with pytest.raises(ValueError, match=r"n is .*; expected a whole number from 0 to 10"):
        state.whole("n", 0, 10)


@pytest.mark.parametrize("value", [-0.1, float("nan"), "3"])
def test_rejects_values_that_are_not_numbers_in_range(value: object):
    with pytest.raises(ValueError, match=r"x is .*; expected a number from 0 to 1"):
        PartState(values={"x": value}).number("x", 0.0, 1.0)


def test_refuses_arrays_of_another_shape_or_dtype():
    state = PartState({"a": np.zeros((2, 3), np.float32)})
    assert state.array("a", (-1, 3), np.float32).shape == (2, 3)
    for shape, dtype in (((2,), np.float32), ((2, 4), np.float32), ((2, 3), np.float64)):
        with pytest.raises(ValueError, match=r"a is float32 \[2, 3\]; expected"):
            state.array("a", shape, dtype)


@pytest.mark.parametrize("slots", [[0, 5], [-1, 2], [2, 2]])
def test_refuses_slots_out_of_range_or_given_twice(slots: list[int]):
    with pytest.raises(ValueError, match="free has slots"):
        PartState({"free": np.array(slots)}).slots("free", 5)


def test_loaded_generator_continues_from_the_saved_state():
    rng = np.random.default_rng(1)
    rng.random(3)
    state = GeneratorPart(rng).state()
    expected = rng.random(4)
    other = np.random.default_rng(2)
    GeneratorPart(other).load_state(state)
    assert other.random(4).tolist() == expected.tolist()
