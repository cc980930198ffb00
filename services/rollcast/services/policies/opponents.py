"""Stores the opponents of a policy under evaluation in the policy's file, as arrays with prefixed names."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.policies.policies import PolicyState

# `opponents.12/networks.0.layers.0.weight` is an array of version 12.
_NAME: Final = re.compile(r"opponents\.(\d{1,20})/(.+)", re.DOTALL)


def with_opponents(state: PolicyState, opponents: Mapping[int, PolicyState]) -> PolicyState:
    """Returns the arrays of a policy together with the arrays of its opponents.

    Args:
        state: The policy's arrays.
        opponents: The arrays of each opponent, by the opponent's version.
    """
    theirs = {
        f"opponents.{version}/{name}": array for version, arrays in opponents.items() for name, array in arrays.items()
    }
    return {**state, **theirs}


def without_opponents(state: PolicyState) -> tuple[PolicyState, dict[int, PolicyState]]:
    """Returns a policy's own arrays, and the arrays of each opponent by version, in ascending order."""
    own: dict[str, NDArray[np.generic]] = {}
    theirs: dict[int, dict[str, NDArray[np.generic]]] = {}
    for name, array in state.items():
        if match := _NAME.fullmatch(name):
            theirs.setdefault(int(match[1]), {})[match[2]] = array
        else:
            own[name] = array
    return own, dict(sorted(theirs.items()))
