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
    """Draws from inserted slots.

        sampler.insert(slots)
        drawn = sampler.sample(256)
        sampler.update(drawn, priorities)
        sampler.remove(drawn)

    Invariant: `sample` draws only slots that were inserted and not removed since. The buffer removes entries that have
    reached their number of draws. Not thread-safe; the buffer's lock guards it.

    Attributes:
        bytes_per_slot: The sampler's bytes for each slot.
        largest_weight: The largest importance weight, (N P)^-beta, of the last batch before normalisation; 1 without
            weights.
    """

    bytes_per_slot: ClassVar[float] = 0.0
    largest_weight: float = 1.0

    @abstractmethod
    def insert(self, slots: Slots) -> None:
        """Adds entries.

        Args:
            slots: int64 `[N]`, each once and not yet inserted; oldest first.
        """

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Removes entries.

        Args:
            slots: int64 `[N]`, each once and inserted before.
        """

    @abstractmethod
    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Draws entries.

        Args:
            n: Number of entries, at least 1 and at most the number of inserted ones.
            left: Returns the remaining draws of entries, at least one each; None: no limit. Only samplers that may draw
                an entry twice in a batch have to call it.

        Returns:
            int64 `[n]`.

        Raises:
            NotReadyError: The sampler found fewer entries. Not every sampler checks.
        """

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:  # noqa: B027 most have no priorities
        """Sets priorities; does nothing in samplers without priorities.

        Args:
            slots: int64 `[N]`, all inserted. If a slot occurs twice, its last priority counts.
            priorities: float64 `[N]`, finite, at least 0.
        """

    def weights(self, slots: Slots, n_entries: int = 1) -> NDArray[np.float32] | None:
        """Returns the importance weights of drawn entries, at most 1; None: all are 1.

        Args:
            slots: int64 `[N]`, as `sample` returned them.
            n_entries: The number of entries from which they were drawn, for `largest_weight`.

        Returns:
            float32 `[N]` in (0, 1], or None.
        """
        return None

    def set_beta(self, beta: float) -> None:  # noqa: B027 most have no importance weights
        """Sets the degree to which importance weights correct the bias; does nothing in samplers without weights.

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
        """Replaces all content by an earlier result of `state`."""
