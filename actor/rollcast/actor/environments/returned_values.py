"""What an environment may return from `step` and `reset`: one rule for everybody who steps one."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from rollcast.services.errors import InvalidInputError, InvalidTensorError
from rollcast.services.spaces.leaf_schema import leaf_schema

# Types whose values are taken as they are; everything else is looked at.
_NUMBERS: Final = frozenset({float, int, np.float64, np.float32})
_FLAGS: Final = frozenset({bool, np.bool_})
# A tuple, not a union, which costs as much as everything else here.
_SEQUENCES: Final = (tuple, list)

# The largest reward that a rollout, in float32, can hold.
_LARGEST_REWARD: Final = float(np.finfo(np.float32).max)

# What Python or numpy may call a real number: no text, no object, no complex one.
_REAL_KINDS: Final = "biuf"


class InvalidValueError(InvalidInputError):
    """An environment returned, or is to be given, what is not as its space says."""


def checked_step(result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - whatever it returned
    """Checks the shape of what `step` returned; its members are checked on their own.

    Args:
        result: What it returned.

    Returns:
        The same.

    Raises:
        InvalidValueError: It is no tuple of five, the last of which is a dictionary.
    """
    if isinstance(result, _SEQUENCES) and len(result) == 5 and isinstance(result[4], dict):
        return result  # type: ignore[return-value]  # five members
    raise InvalidValueError(
        f"step() returned {_described(result)}; expected (observation, reward, terminated, truncated, info), the last "
        "a dictionary; correct what it returns"
    )


def checked_reset(result: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - whatever it returned
    """Checks the shape of what `reset` returned.

    Args:
        result: What it returned.

    Returns:
        The same.

    Raises:
        InvalidValueError: It is no tuple of two, the last of which is a dictionary.
    """
    if isinstance(result, _SEQUENCES) and len(result) == 2 and isinstance(result[1], dict):
        return result  # type: ignore[return-value]  # two members
    raise InvalidValueError(
        f"reset() returned {_described(result)}; expected (observation, info), the last a dictionary; correct what it "
        "returns"
    )


def checked_reward(reward: Any) -> float:  # noqa: ANN401 - whatever it returned
    """Takes a reward: a finite real number of Python's or numpy's, a bool, or an array of exactly one of these.

    Args:
        reward: What the environment returned.

    Returns:
        The number.

    Raises:
        InvalidValueError: It is something else: text, None, a complex number, NaN, an array of several.
    """
    if type(reward) not in _NUMBERS:
        reward = _only_number(reward, f"the reward is {reward!r:.100}; expected a number; correct what step() returns")
    if not -_LARGEST_REWARD <= reward <= _LARGEST_REWARD:  # NaN too
        raise InvalidValueError(
            f"the reward is {reward!r:.100}; expected a finite number that a float32 can hold; find where the "
            "environment makes it"
        )
    return float(reward)


def checked_flag(flag: Any, name: str) -> bool:  # noqa: ANN401 - whatever it returned
    """Takes what says whether an episode ended: a bool, 0 or 1, or an array of exactly one of these.

    Args:
        flag: What the environment returned.
        name: What it is: `"terminated"`.

    Returns:
        Whether it did.

    Raises:
        InvalidValueError: It is something else: text, None, another number.
    """
    if type(flag) in _FLAGS:
        return bool(flag)
    problem = f"{name} is {flag!r:.100}; expected True or False; correct what step() returns"
    number = _only_number(flag, problem)
    if number not in (0, 1):
        raise InvalidValueError(problem)
    return bool(number)


def check_observed(leaf: Space[Any], values: NDArray[Any], what: str) -> None:
    """Refuses an observation that no policy can act on: NaN, infinities, values outside of a discrete space.

    Bounds of a Box are not checked: environments overstep them, and their training still works.

    Args:
        leaf: A leaf of an observation space.
        values: What the environment returned for it, in the leaf's shape.
        what: What it is, for the message.

    Raises:
        InvalidValueError: It holds such a value.
    """
    schema = leaf_schema(leaf)
    if schema.n_values is not None:
        # lest a value that does not fit the leaf's dtype wraps around into its range
        schema = replace(schema, dtype=np.dtype(np.int64))
    try:
        schema.check_values(np.asarray(values, schema.dtype, order="C"), what=what, axes=())
    except InvalidTensorError as error:
        raise InvalidValueError(str(error)) from error


def _only_number(value: Any, problem: str) -> Any:  # noqa: ANN401 - a number of whatever type
    """Returns the real number that a value is, or is an array of."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.dtype.kind in _REAL_KINDS:
        return value.item()
    raise InvalidValueError(problem)


def _described(result: object) -> str:
    if not isinstance(result, _SEQUENCES):
        return f"a {type(result).__name__}"
    return f"a {type(result).__name__} of {len(result)}: {', '.join(type(member).__name__ for member in result)[:200]}"
