"""Carries the opponents of a policy that is to be evaluated in its own file, as arrays with names of their own."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.policies.policies import PolicyState

# `opponents.12/networks.0.layers.0.weight` is an array of version 12.
_NAME: Final = re.compile(r"opponents\.(\d{1,20})/(.+)", re.DOTALL)


def with_opponents(state: PolicyState, opponents: Mapping[int, PolicyState]) -> PolicyState:
    """Returns the arrays of a policy and of the versions that it is to play against.

    Args:
        state: The policy's arrays.
        opponents: The arrays of each opponent, by its version.
    """
    theirs = {
        f"opponents.{version}/{name}": array for version, arrays in opponents.items() for name, array in arrays.items()
    }
    return {**state, **theirs}


def without_opponents(state: PolicyState) -> tuple[PolicyState, dict[int, PolicyState]]:
    """Returns a policy's own arrays, and those of each opponent by its version, in rising order."""
    own: dict[str, NDArray[np.generic]] = {}
    theirs: dict[int, dict[str, NDArray[np.generic]]] = {}
    for name, array in state.items():
        if match := _NAME.fullmatch(name):
            theirs.setdefault(int(match[1]), {})[match[2]] = array
        else:
            own[name] = array
    return own, dict(sorted(theirs.items()))
