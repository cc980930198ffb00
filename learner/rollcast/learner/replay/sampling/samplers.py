"""Which entries are drawn: the seam, and `Uniform`. `uniform_rows`, `prioritized` and `insertion_order` have more."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.learner.replay.columns.slots import Slots
from rollcast.learner.replay.saving.part_state import PartState, generator_state

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


class Uniform(Sampler):
    """Every entry with the same probability, none twice in a batch; the cost does not depend on how many are in.

    The entries lie densely in a list, at 16 bytes a slot; whoever is removed is replaced by the last.
    """

    bytes_per_slot = 16

    def __init__(self, n_slots: int, rng: np.random.Generator) -> None:
        """Starts empty.

        Args:
            n_slots: Slots are below it.
            rng: Its own generator.
        """
        self._rng = rng
        self._list = np.zeros(n_slots, np.int64)
        self._position = np.full(n_slots, -1, np.int64)
        self._n = 0

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        end = self._n + len(slots)
        self._list[self._n : end] = slots
        self._position[slots] = np.arange(self._n, end)
        self._n = end

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        left = self._n - len(slots)
        positions = self._position.take(slots)
        self._position[slots] = -1
        last = self._list[left : self._n]
        movers = last[self._position.take(last) >= 0]
        holes = positions[positions < left]
        self._list[holes] = movers
        self._position[movers] = holes
        self._n = left

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """See `Sampler.sample`; in random order."""
        return self._list.take(self._rng.choice(self._n, n, replace=False))

    def clear(self) -> None:
        """See `Sampler.clear`."""
        self._position.fill(-1)
        self._n = 0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState({"list": self._list[: self._n].copy()}, {"generator": generator_state(self._rng)})

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        entries = state.slots("list", len(self._list))
        self.clear()
        self.insert(entries)
        self._rng.bit_generator.state = state.values["generator"]
