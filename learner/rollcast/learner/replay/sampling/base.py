"""The abstract `Sampler`, which chooses the entries of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.saving.part_state import PartState

# Returns how often the entries in some slots may still be drawn, int32 `[N]`.
DrawsLeft: TypeAlias = Callable[[Slots], NDArray[np.int32]]


class Sampler(ABC):
    """Draws slots out of those that were inserted.

        sampler.insert(slots)
        drawn = sampler.sample(256)
        sampler.update(drawn, priorities)
        sampler.remove(drawn)

    Invariant: `sample` draws only slots that were inserted and not removed since. The buffer removes entries that were
    drawn as often as they may. Not thread-safe; the buffer's lock guards it.

    Attributes:
        bytes_per_slot: Bytes it takes for each slot.
        largest_weight: The largest importance weight, (N P)^-beta, by which `weights` divided the last ones; 1 without.
    """

    bytes_per_slot: ClassVar[float] = 0.0
    largest_weight: float = 1.0

    @abstractmethod
    def insert(self, slots: Slots) -> None:
        """Adds entries.

        Args:
            slots: int64 `[N]`, each once, none of them inserted already; the oldest first.
        """

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Removes entries.

        Args:
            slots: int64 `[N]`, each once, all of them inserted before.
        """

    @abstractmethod
    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Draws entries.

        Args:
            n: Number of entries, at least 1 and at most the number inserted.
            left: Returns how often entries may still be drawn, at least once each; None: any number of times. Only
                samplers that may draw an entry twice in a batch have to call it.

        Returns:
            int64 `[n]`.

        Raises:
            NotReadyError: There are fewer entries, and the sampler noticed.
        """

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:  # noqa: B027 most have no priorities
        """Sets priorities; does nothing in samplers without priorities.

        Args:
            slots: int64 `[N]`, all of them inserted; the last priority counts for a slot given twice.
            priorities: float64 `[N]`, finite, at least 0.
        """

    def weights(self, slots: Slots, n_entries: int = 1) -> NDArray[np.float32] | None:
        """Returns the importance weights of drawn entries, the largest 1; None: all are 1.

        Args:
            slots: int64 `[N]`, as `sample` returned them.
            n_entries: The entries that they were drawn from, for `largest_weight`.

        Returns:
            float32 `[N]` in (0, 1], or None.
        """
        return None

    def set_beta(self, beta: float) -> None:  # noqa: B027 most have no importance weights
        """Sets how much of the sampling bias importance weights correct; does nothing in samplers without weights.

        Args:
            beta: In [0, 1].
        """

    @abstractmethod
    def clear(self) -> None:
        """Removes every entry."""

    @abstractmethod
    def state(self) -> PartState:
        """Returns the state for a checkpoint, including the random generator."""

    @abstractmethod
    def load_state(self, state: PartState) -> None:
        """Replaces everything by a state that `state` returned."""
