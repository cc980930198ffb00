"""Which entries are drawn: the seam, and `Uniform`. `uniform_rows`, `prioritized` and `insertion_order` have more."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.saving.part_state import PartState

# How often entries may still be drawn, int `[N]`, by their slots.
DrawsLeft: TypeAlias = Callable[[Slots], NDArray[np.int32]]


class Sampler(ABC):
    """Draws from the entries it was told of, by slot.

        sampler.insert(slots)
        drawn = sampler.sample(256)
        sampler.update(drawn, priorities)
        sampler.remove(drawn)

    Invariant: `sample` draws only slots that were inserted and not removed since. What has been drawn as often as it
    may is removed by the buffer. Not thread-safe; the buffer's lock guards it.

    Attributes:
        bytes_per_slot: Bytes it takes for each slot.
    """

    bytes_per_slot: ClassVar[float] = 0.0

    @abstractmethod
    def insert(self, slots: Slots) -> None:
        """Adds entries.

        Args:
            slots: int64 `[N]`, each once, none of them in already; the oldest first.
        """

    @abstractmethod
    def remove(self, slots: Slots) -> None:
        """Takes entries out.

        Args:
            slots: int64 `[N]`, each once, all of them in.
        """

    @abstractmethod
    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Draws entries.

        Args:
            n: How many, at least 1 and at most as many as are in.
            left: How often entries may still be drawn, at least once each; None: any number of times. Only those who
                may draw an entry twice in a batch have to look.

        Returns:
            int64 `[n]`.

        Raises:
            NotReadyError: If fewer entries are in, where the sampler notices.
        """

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:  # noqa: B027 most have no priorities
        """Sets priorities, where they mean anything.

        Args:
            slots: int64 `[N]`, all of them in; of one given twice, the last priority stays.
            priorities: float64 `[N]`, finite, at least 0.
        """

    def weights(self, slots: Slots) -> NDArray[np.float32] | None:
        """Importance weights of drawn entries, the largest 1; None: all are 1.

        Args:
            slots: int64 `[N]`, as `sample` returned them.

        Returns:
            float32 `[N]` in (0, 1], or None.
        """
        return None

    def set_beta(self, beta: float) -> None:  # noqa: B027 most have no importance weights
        """Sets how much of the bias importance weights take back, where there are any.

        Args:
            beta: In [0, 1].
        """

    @abstractmethod
    def clear(self) -> None:
        """Takes every entry out."""

    @abstractmethod
    def state(self) -> PartState:
        """What a checkpoint keeps, the generator among it."""

    @abstractmethod
    def load_state(self, state: PartState) -> None:
        """Takes up what `state` has said, in place of whatever is in."""
