"""Finds the changes of lanes since the last message to a page, so that the page gets only these."""

import base64
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

# uint8 [cells, width]: the shares of all states, or only the number of the largest.
Cells: TypeAlias = NDArray[np.uint8]
Kind: TypeAlias = Literal["actor", "learner"]
# (actor, kind, width, new cells in base64): the new cells are appended, and as many old ones are removed.
Change: TypeAlias = tuple[str, Kind, int, str]

# A lane that moved by more cells than this is sent whole.
_MAX_SHIFT: Final = 8


class SentLanes:
    """The lanes that one page has. Used by one thread."""

    def __init__(self) -> None:
        self._sent: dict[str, Cells] = {}

    def changes(self, lanes: Mapping[str, Cells]) -> tuple[list[Change], list[str]]:
        """Returns the changes from the page's lanes to the given lanes, and records them as sent.

        Args:
            lanes: The lanes by actor; the learner's has the empty name.

        Returns:
            The changes, and the actors whose lanes are gone.
        """
        changes = [
            (actor_id, _kind(actor_id), cells.shape[1], base64.b64encode(new.tobytes()).decode())
            for actor_id, cells in lanes.items()
            if len(new := _new_cells(self._sent.get(actor_id), cells))
        ]
        gone = [actor_id for actor_id in self._sent if actor_id not in lanes]
        self._sent = dict(lanes)
        return changes, gone

    def forget(self) -> None:
        """Forgets all lanes, because the page has none."""
        self._sent = {}


def largest_states(shares: Cells) -> Cells:
    """Returns `[cells, 1]`: the number of the state with the largest share of each cell, from 1 on; 0: not known.

    Args:
        shares: uint8 `[cells, states]`.
    """
    largest = np.where(shares.any(axis=1), shares.argmax(axis=1) + 1, 0)
    return largest.astype(np.uint8)[:, None]


def _kind(actor_id: str) -> Kind:
    return "actor" if actor_id else "learner"


def _new_cells(before: Cells | None, now: Cells) -> Cells:
    if before is None or before.shape != now.shape:
        return now
    n_cells = len(now)
    for shift in range(min(_MAX_SHIFT, n_cells)):
        if np.array_equal(now[: n_cells - shift], before[shift:]):
            return now[n_cells - shift :]
    return now
