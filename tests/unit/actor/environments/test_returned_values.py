import math

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.actor.environments.returned_values import (
    InvalidValueError,
    check_observed,
    checked_flag,
    checked_reset,
    checked_reward,
    checked_step,
)


@pytest.mark.parametrize(
    ("reward", "taken"),
    [
        (1, 1.0),
        (-2.5, -2.5),
        (True, 1.0),
        (np.bool_(True), 1.0),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.float16(0.125), 0.125),
        (np.int64(3), 3.0),
        (np.uint8(200), 200.0),
        (np.array(4.0), 4.0),
        (np.array([5.0], np.float32), 5.0),
        (np.array([[6]]), 6.0),
    ],
)
def test_accepts_every_real_number_as_reward(reward: object, taken: float):
    assert checked_reward(reward) == taken
    assert type(checked_reward(reward)) is float


NO_NUMBERS = ["1", b"1", None, 1j, [1.0], (1.0,), {}, np.ones(2), np.ones(0), np.array(["1"]), np.array([None])]
BEYOND_FLOAT32 = [math.nan, math.inf, -math.inf, np.float32(np.nan), np.array([np.inf]), 1e39, 10**400]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        *((reward, "a number; correct the result of step") for reward in NO_NUMBERS),
        *((reward, "a finite number that a float32 can hold") for reward in BEYOND_FLOAT32),
    ],
)
def test_rejects_reward_that_is_no_number_of_float32(reward: object, expected: str):
    with pytest.raises(InvalidValueError, match=f"the reward is .*; expected {expected}"):
        checked_reward(reward)


@pytest.mark.parametrize(
    ("flag", "taken"), [(True, True), (np.bool_(False), False), (1, True), (0, False), (np.array([True]), True)]
)
def test_accepts_flags(flag: object, taken: bool):
    assert checked_flag(flag, "terminated") is taken


@pytest.mark.parametrize("flag", ["False", None, 2, 0.5, np.array([True, False]), math.nan])
def test_rejects_values_that_are_not_flags(flag: object):
    with pytest.raises(
        InvalidValueError, match=r"terminated is .*; expected True or False; correct the result of step"
    ):
        checked_flag(flag, "terminated")


def test_error_describes_wrong_return_of_step_and_reset():
    with pytest.raises(
        InvalidValueError, match=r"step\(\) returned a tuple of 4: int, float, bool, dict; expected \(obs"
    ):
        checked_step((1, 1.0, True, {}))
    with pytest.raises(InvalidValueError, match=r"step\(\) returned a NoneType; expected"):
        checked_step(None)
    with pytest.raises(InvalidValueError, match="the last a dictionary"):
        checked_step((1, 1.0, True, False, None))
    with pytest.raises(InvalidValueError, match=r"reset\(\) returned a ndarray; expected \(observation, info\)"):
        checked_reset(np.zeros(2))
    assert checked_step((1, 1.0, True, False, {}))[4] == {}
    assert checked_reset((1, {})) == (1, {})


@pytest.mark.parametrize(
    ("leaf", "value", "message"),
    [
        (spaces.Discrete(5), 7, "x holds 7; expected 0 to 4; correct the environment's observation"),
        (spaces.Discrete(5, start=-2), -3, "x holds -3; expected -2 to 2"),
        (spaces.MultiBinary(3), [0, 2, 0], r"x holds 2, element \[1\]; expected 0 to 1"),
        (spaces.MultiBinary(3), [0, 257, 0], r"x holds 257"),
        (spaces.MultiDiscrete([2, 3]), [1, 3], r"x holds 3, element \[1\]; expected 0 to 2; correct"),
        (spaces.Box(-1, 1, (2,)), [0.0, np.nan], r"x holds nan, element \[1\]; expected finite numbers"),
        (spaces.Box(-1, 1, ()), np.inf, "x holds inf; expected finite numbers; find its source in the environment$"),
    ],
)
def test_rejects_observations_out_of_range_or_not_finite(leaf: spaces.Space, value: object, message: str):
    with pytest.raises(InvalidValueError, match=message):
        check_observed(leaf, np.asarray(value), "x")


def test_accepts_observations_outside_a_box():
    check_observed(spaces.Box(-1, 1, (2,)), np.array([5.0, -7.0]), "x")
