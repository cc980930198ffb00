"""Checks the values that environments return from `step` and `reset`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from rollcast.services.errors import InvalidInputError, InvalidTensorError
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import Observation, describe_space, flatten_observation

# Types whose values need no further check.
_NUMBERS: Final = frozenset({float, int, np.float64, np.float32})
_FLAGS: Final = frozenset({bool, np.bool_})
# A tuple, because isinstance with a union costs as much as all the rest here.
_SEQUENCES: Final = (tuple, list)

# The largest reward that a rollout, in float32, can hold.
_LARGEST_REWARD: Final = float(np.finfo(np.float32).max)

# The kinds of numpy dtypes that hold real numbers: no text, no objects, no complex numbers.
_REAL_KINDS: Final = "biuf"


class InvalidValueError(InvalidInputError):
    """A value that an environment returned or received does not fit the space."""


def checked_step(result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - any value
    """Returns the result of `step` if it is a tuple of five whose last member is a dictionary. Checks no other member.

    Args:
        result: The returned value.

    Raises:
        InvalidValueError: If the result has another form.
    """
    if isinstance(result, _SEQUENCES) and len(result) == 5 and isinstance(result[4], dict):
        return result  # type: ignore[return-value]  # five members
    raise InvalidValueError(
        f"step() returned {_described(result)}; expected (observation, reward, terminated, truncated, info), the last "
        "a dictionary; correct its return value"
    )


def checked_reset(result: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - any value
    """Returns the result of `reset` if it is a tuple of two whose last member is a dictionary. Checks no other member.

    Args:
        result: The returned value.

    Raises:
        InvalidValueError: If the result has another form.
    """
    if isinstance(result, _SEQUENCES) and len(result) == 2 and isinstance(result[1], dict):
        return result  # type: ignore[return-value]  # two members
    raise InvalidValueError(
        f"reset() returned {_described(result)}; expected (observation, info), the last a dictionary; correct its "
        "return value"
    )


def checked_reward(reward: Any) -> float:  # noqa: ANN401 - any value
    """Returns a reward as a float.

    Args:
        reward: A finite real number of Python or numpy, a bool, or an array of exactly one of these.

    Raises:
        InvalidValueError: If the reward is another value: text, None, a complex number, NaN, an array of several
            numbers.
    """
    if type(reward) not in _NUMBERS:
        reward = _only_number(reward, f"the reward is {reward!r:.100}; expected a number; correct the result of step()")
    if not -_LARGEST_REWARD <= reward <= _LARGEST_REWARD:  # NaN too
        raise InvalidValueError(
            f"the reward is {reward!r:.100}; expected a finite number that a float32 can hold; find its "
            "source in the environment"
        )
    return float(reward)


def checked_flag(flag: Any, name: str) -> bool:  # noqa: ANN401 - any value
    """Returns a flag as a bool.

    Args:
        flag: A bool, 0 or 1, or an array of exactly one of these.
        name: Name of the flag in messages: `"terminated"`.

    Raises:
        InvalidValueError: If the flag is another value: text, None, another number.
    """
    if type(flag) in _FLAGS:
        return bool(flag)
    problem = f"{name} is {flag!r:.100}; expected True or False; correct the result of step()"
    number = _only_number(flag, problem)
    if number not in (0, 1):
        raise InvalidValueError(problem)
    return bool(number)


def checked_leaves(
    space: Space[Any],
    leaves: Mapping[str, Space[Any]],
    value: Any,  # noqa: ANN401 - any value
    what: str,
) -> Observation:
    """Returns the leaves of an observation, in the order of the space.

    Args:
        space: The space of the observation.
        leaves: As `space_leaves` returns them for the space.
        value: The observation.
        what: Name of the observation in the message.

    Raises:
        InvalidValueError: If a leaf is missing, has another shape or kind of number than its space, or holds a value
            that `check_observed` refuses.
    """
    try:
        arrays = flatten_observation(space, value)
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidValueError(
            f"{what} lacks {error}; expected a value of {describe_space(space)}; make the environment return values "
            "of its space"
        ) from error
    for path, leaf in leaves.items():
        array, shape = arrays[path], leaf.shape or ()
        where = what + (f" at {path!r}" if path else "")
        if array.shape != shape or not is_taken_for(array.dtype, leaf):
            raise InvalidValueError(
                f"{where} is {array.dtype}{list(array.shape)}; expected {leaf.dtype}{list(shape)}; make the "
                "environment return values of its space"
            )
        # A third of the time of the other check, which is for all other kinds of values.
        if array.dtype.kind != "f" or array.dtype != leaf.dtype or not np.isfinite(array).all():
            check_observed(leaf, array, where)
    return arrays


def is_taken_for(given: np.dtype[Any], leaf: Space[Any]) -> bool:
    """Returns whether an observation of a dtype is accepted for a leaf of an observation space.

    As in gymnasium's own vectors, float64 passes for float32. gymnasium's Discrete contains every integer type.
    """
    if isinstance(leaf, Discrete) and np.issubdtype(given, np.integer):
        return True
    return leaf.dtype is None or np.can_cast(given, leaf.dtype, "same_kind")


def check_observed(leaf: Space[Any], values: NDArray[Any], what: str) -> None:
    """Raises if an observation holds NaN, an infinity, or a value outside a discrete space.

    Bounds of a Box are not checked: many environments exceed them, and training still works.

    Args:
        leaf: A leaf of an observation space.
        values: The leaf's values, in its shape.
        what: Name of the values in the message.

    Raises:
        InvalidValueError: If the observation holds such a value.
    """
    schema = leaf_schema(leaf)
    advice = "find its source in the environment"
    if schema.n_values is not None:
        advice = "correct the environment's observation, or its observation_space"
        # int64, because a value too large for the leaf's dtype would wrap around into its range.
        schema = replace(schema, dtype=np.dtype(np.int64))
    try:
        schema.check_values(np.asarray(values, schema.dtype, order="C"), what=what, axes=(), advice=advice)
    except InvalidTensorError as error:
        # Not chained: both errors have the same text, which would be printed twice.
        raise InvalidValueError(str(error)) from None


def _only_number(value: Any, problem: str) -> Any:  # noqa: ANN401 - a number of whatever type
    """Returns a real number, or the only element of an array; raises `problem` for any other value."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.dtype.kind in _REAL_KINDS:
        return value.item()
    raise InvalidValueError(problem)


def _described(result: object) -> str:
    if not isinstance(result, _SEQUENCES):
        return f"a {type(result).__name__}"
    return f"a {type(result).__name__} of {len(result)}: {', '.join(type(member).__name__ for member in result)[:200]}"
