"""Defines the spaces of an environment: their leaves, and their comparison."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollcast.services.errors import InvalidSpaceError, SpacesMismatchError

FLAT_SUBSTEP = "0"

_LEAF_KINDS: Final = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstepSpaces:
    """The spaces of one substep.

    Attributes:
        observation: The observation of each agent.
        action: The action of each agent.
        n_agents: The number of agents of one environment that act in the substep, each with its own observation; at
            least 1.
    """

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]
    n_agents: int = 1


EnvironmentSpaces = Mapping[str, SubstepSpaces]

# One array for each leaf of an observation space, by the leaf's path; "" if the space itself is a leaf.
Observation = Mapping[str, NDArray[np.generic]]

# Dicts and tuples of arrays, nested like the space, which a type checker cannot know.
NestedObservation: TypeAlias = Any


def space_leaves(space: gymnasium.Space[Any]) -> dict[str, gymnasium.Space[Any]]:
    """Returns the leaves of a space by path, in the order of the space.

    Args:
        space: Box, Discrete, MultiBinary, MultiDiscrete, or nested Dict and Tuple of these.

    Returns:
        The leaves by path: `"camera/left"` for Dict(camera=Dict(left=...)), `"1"` for the second member of a Tuple,
            `""` if the space itself is a leaf.

    Raises:
        InvalidSpaceError: The kind of space is not supported, a Dict or Tuple is empty, or a key is not a non-empty
            string without "/".
    """
    leaves: dict[str, gymnasium.Space[Any]] = {}
    _collect_leaves(space, "", leaves)
    return leaves


def numeric_leaves(environment: EnvironmentSpaces) -> Iterator[tuple[str, str, spaces.Box]]:
    """Yields substep, path and space of each observation leaf whose numbers a network receives unscaled.

    Networks scale bytes to [0, 1], and receive categories as one-hot vectors.
    """
    for key, substep in environment.items():
        for path, leaf in space_leaves(substep.observation).items():
            if isinstance(leaf, spaces.Box) and leaf.dtype != np.uint8:
                yield key, path, leaf


def flatten_observation(space: gymnasium.Space[Any], value: NestedObservation) -> dict[str, NDArray[Any]]:
    """Flattens a nested observation, or a batch of observations, into leaves.

    The function does not copy arrays. The caller must have checked the space with `space_leaves`.

    Args:
        space: The space of a single observation.
        value: A value of the space, or a vector environment's observation with the same nesting, each leaf `[N, ...]`.

    Returns:
        The arrays by path, in the order of the space.
    """
    if isinstance(space, spaces.Dict):
        return {
            _join(key, path): leaf
            for key, member in space.spaces.items()
            for path, leaf in flatten_observation(member, value[key]).items()
        }
    if isinstance(space, spaces.Tuple):
        return {
            _join(str(index), path): leaf
            for index, member in enumerate(space.spaces)
            for path, leaf in flatten_observation(member, value[index]).items()
        }
    return {"": np.asarray(value)}


def unflatten_observation(space: gymnasium.Space[Any], leaves: Observation) -> NestedObservation:
    """Rebuilds a nested observation from its leaves: the inverse of `flatten_observation`.

    Args:
        space: The space of a single observation.
        leaves: The arrays by path, `[...]` or `[N, ...]`.

    Returns:
        Dicts and tuples of the arrays, with the space's nesting.

    Raises:
        InvalidSpaceError: A leaf is missing.
    """
    return _nest(space, leaves, "")


def check_action_space_supported(space: gymnasium.Space[Any], *, where: str) -> None:
    """Refuses action spaces that no policy of rollcast supports.

    Args:
        space: The action space of one substep.
        where: The description of the space's owner in messages.

    Raises:
        InvalidSpaceError: The space is not a Discrete, MultiDiscrete, MultiBinary or Box of floats, or is empty.
    """
    if 0 in (space.shape or ()):
        raise InvalidSpaceError(
            f"the action space of {where} is {describe_space(space)}, which has no element; expected at least one; "
            "give it an action, a Discrete(1) if there is no choice"
        )
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return
    raise InvalidSpaceError(
        f"the action space of {where} is {describe_space(space)}; expected Discrete, MultiDiscrete, MultiBinary or a "
        "Box of floats; wrap the environment so that its actions are one of these"
    )


def check_spaces_match(
    expected: EnvironmentSpaces, offered: EnvironmentSpaces, *, expected_side: str, offered_side: str
) -> None:
    """Refuses different spaces. The error contains the first path at which they differ.

    The order of substeps and of a Dict's members does not matter, because they have names. If the order matters, use
    `leaf_order`.

    Args:
        expected: The spaces to compare with.
        offered: The spaces to check.
        expected_side: The owner of the expected spaces, such as "the learner".
        offered_side: The owner of the offered spaces, such as "actor 'x'".

    Raises:
        SpacesMismatchError: The spaces differ. The message contains the path inside the space and both sides.
    """
    for path, mine, theirs in _differences(expected, offered):
        raise SpacesMismatchError(
            f"spaces differ at {path}: {expected_side} has {mine}, {offered_side} has {theirs}; expected the same; "
            "start both with the same environment and wrappers"
        )


def leaf_order(environment: EnvironmentSpaces) -> list[tuple[str, str]]:
    """Returns the substep key and path of every observation leaf, in the order of a network's inputs.

    Args:
        environment: The spaces by substep key.
    """
    return [(key, path) for key, substep in environment.items() for path in space_leaves(substep.observation)]


def describe_space(space: gymnasium.Space[Any]) -> str:
    """Returns a space's repr on one line of at most 200 characters, for messages.

    Args:
        space: Any space.
    """
    text = " ".join(repr(space).split())
    return text if len(text) <= 200 else text[:197] + "..."


def described_spaces(environment: EnvironmentSpaces) -> dict[str, str]:
    """Describes the leaves of an environment's spaces, in the order of a network's inputs.

    Args:
        environment: The spaces by substep key.

    Returns:
        The description of each observation leaf and action space, by path, such as `"0/observation/camera"`.
    """
    described: dict[str, str] = {}
    for key, substep in environment.items():
        for path, leaf in space_leaves(substep.observation).items():
            described[_join(f"{key}/observation", path)] = describe_space(leaf)
        described[f"{key}/action"] = describe_space(substep.action)
    return described


def _collect_leaves(space: gymnasium.Space[Any], path: str, leaves: dict[str, gymnasium.Space[Any]]) -> None:
    if isinstance(space, _LEAF_KINDS):
        leaves[path] = space
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        members = list(_members(space))
        if not members:
            raise InvalidSpaceError(
                f"{describe_space(space)} at {path!r} is empty; expected at least one member; remove it"
            )
        for key, member in members:
            if not isinstance(key, str) or not key or "/" in key:
                raise InvalidSpaceError(
                    f"the key {key!r} in the space at {path!r} cannot be part of a path; expected a non-empty string "
                    "without '/'; rename it in a wrapper"
                )
            _collect_leaves(member, _join(path, key), leaves)
    else:
        raise InvalidSpaceError(
            f"{type(space).__name__} at {path!r} is not supported; expected Box, Discrete, MultiBinary, MultiDiscrete, "
            "Dict or Tuple; wrap the environment so that it uses these"
        )


def _members(space: spaces.Dict | spaces.Tuple[Any]) -> Iterator[tuple[str, gymnasium.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        yield from space.spaces.items()
    else:
        yield from ((str(index), member) for index, member in enumerate(space.spaces))


def _nest(space: gymnasium.Space[Any], leaves: Observation, path: str) -> NestedObservation:
    if isinstance(space, spaces.Dict):
        return {key: _nest(member, leaves, _join(path, key)) for key, member in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(member, leaves, _join(path, str(i))) for i, member in enumerate(space.spaces))
    if path not in leaves:
        raise InvalidSpaceError(
            f"the observation has no leaf {path!r}; it has {sorted(leaves)}; "
            "expected every leaf of the space; pass what `flatten_observation` returned"
        )
    return leaves[path]


def _differences(expected: EnvironmentSpaces, offered: EnvironmentSpaces) -> Iterator[tuple[str, str, str]]:
    if expected.keys() != offered.keys():
        yield "the substeps", str(list(expected)), str(list(offered))
    for key in expected:
        yield from _space_differences(f"{key}/observation", expected[key].observation, offered[key].observation)
        yield from _space_differences(f"{key}/action", expected[key].action, offered[key].action)
        n_mine, n_theirs = expected[key].n_agents, offered[key].n_agents
        if n_mine != n_theirs:
            yield f"{key}/n_agents", str(n_mine), str(n_theirs)


def _space_differences(
    path: str, mine: gymnasium.Space[Any], theirs: gymnasium.Space[Any]
) -> Iterator[tuple[str, str, str]]:
    for kind in (spaces.Dict, spaces.Tuple):
        if isinstance(mine, kind) and isinstance(theirs, kind):
            members, others = dict(_members(mine)), dict(_members(theirs))
            if members.keys() != others.keys():
                yield path, f"members {list(members)}", f"members {list(others)}"
            else:
                for key, member in members.items():
                    yield from _space_differences(f"{path}/{key}", member, others[key])
            return
    if not _same_leaf(mine, theirs):
        yield path, describe_space(mine), describe_space(theirs)


def _same_leaf(mine: gymnasium.Space[Any], theirs: gymnasium.Space[Any]) -> bool:
    if isinstance(mine, spaces.MultiBinary) and isinstance(theirs, spaces.MultiBinary):
        return mine.shape == theirs.shape  # in gymnasium, MultiBinary(3) and MultiBinary([3]) differ
    # gymnasium compares a Discrete's n and start but not its dtype, which becomes its column's dtype.
    return type(mine) is type(theirs) and mine == theirs and mine.dtype == theirs.dtype


def _join(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix and path else prefix or path
