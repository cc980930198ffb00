"""Samples by priority, and finds the entries with the lowest priorities for removal.

Schaul et al. 2016, "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollcast.learner.replay.columns.layout import Slots
from rollcast.learner.replay.sampling.base import DrawsLeft, Sampler
from rollcast.learner.replay.sampling.trees import MinTree, SumTree
from rollcast.learner.replay.saving.part_state import PartState, generator_state
from rollcast.services.errors import InvalidInputError

# The largest priority accepted: above any useful one, and small enough that sums over 1e9 entries stay finite.
MAX_PRIORITY = 1e100


def as_priorities(values: ArrayLike) -> NDArray[np.float64]:
    """Converts priorities to float64; does not check them.

    Args:
        values: Numbers of any dtype and shape. NaN stays NaN, without numpy's warning about signalling NaNs.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(values, np.float64)


def check_priorities(keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
    """Refuses priorities that are out of range, or whose number differs from the number of keys.

    Args:
        keys: int64 `[N]`, keys of the entries.
        priorities: float64 `[N]`.

    Raises:
        InvalidInputError: The shapes differ, or a priority is negative, NaN or above 1e100; the message names the
            first one.
    """
    if keys.ndim != 1 or keys.shape != priorities.shape:
        raise InvalidInputError(
            f"there are keys of shape {list(keys.shape)} and priorities of shape {list(priorities.shape)}; expected "
            "one priority for each key, in one dimension; pass as many priorities as keys"
        )
    right = (priorities >= 0.0) & (priorities <= MAX_PRIORITY)  # of NaN, neither is true
    if not right.all():
        index = int(right.argmin())
        raise InvalidInputError(
            f"the priority at index {index} (key {keys[index]}) is {priorities[index]}; expected a number from 0 to "
            f"{MAX_PRIORITY:g}; pass the absolute values of errors, and look for the step that made NaN"
        )


def _leaves_of(state: PartState, n_leaves: int, largest: float) -> NDArray[np.float64]:
    """Reads priorities in [0, largest].

    Raises:
        ValueError: A priority is out of range.
    """
    leaves = state.array("priorities", (n_leaves,), np.float64)
    if not ((leaves >= 0.0) & (leaves <= largest)).all():
        raise ValueError(f"priorities are from {leaves.min()} to {leaves.max()}; expected them in [0, {largest:g}]")
    return leaves


class Prioritized(Sampler):
    """Draws entry i with probability P(i) = p_i^alpha / sum_k p_k^alpha (equation 1), stratified.

    p_i = |delta_i| + epsilon (section 3.3), where |delta_i| is the priority from `update`. With epsilon, entries of
    error 0 can be drawn again, and all entries are equally likely if all errors are 0. A new entry gets the largest p_i
    so far (initially 1), so that it is drawn soon. Importance weights are (N P(i))^-beta, divided by the largest weight
    of the batch (section 3.4).

    Invariant: the leaf of every entry is above 0, and the leaf of every other slot is 0.
    """

    bytes_per_slot = SumTree.bytes_per_leaf

    def __init__(
        self, n_slots: int, rng: np.random.Generator, *, alpha: float, beta: float, epsilon: float = 1e-6
    ) -> None:
        """Starts empty.

        Args:
            n_slots: Number of slots.
            rng: A generator for this sampler only.
            alpha: Exponent of the priorities, in [0, 1]; 0: priorities have no effect.
            beta: Exponent of the importance weights, in [0, 1], until `set_beta`.
            epsilon: Added to every priority, above 0.
        """
        self._rng = rng
        self._alpha = alpha
        self._epsilon = epsilon
        self._beta = beta
        self._tree = SumTree(n_slots)
        self._largest = 1.0  # to the power of alpha

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        self._tree.set(slots, np.full(len(slots), self._largest))

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        self._tree.set(slots, np.zeros(len(slots)))

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """See `Sampler.sample`. Returns slots in ascending order; an entry can occur more than once."""
        slots = self._tree.sample(self._rng, n)
        if left is None:
            return slots
        distinct, times = np.unique(slots, return_counts=True)
        return slots if (times <= left(distinct)).all() else self._sample_limited(n, left)

    def _sample_limited(self, n: int, left: DrawsLeft) -> Slots:
        """Draws in rounds, without entries that have no draws left. Each round finds at least one entry."""
        found: list[int] = []
        draws_left: dict[int, int] = {}
        put_aside: list[tuple[Slots, NDArray[np.float64]]] = []
        try:
            for _ in range(n):
                if len(found) == n:
                    break
                drawn = self._tree.sample(self._rng, n - len(found))
                for slot, allowed in zip(drawn.tolist(), left(drawn).tolist(), strict=True):
                    if draws_left.setdefault(slot, allowed):
                        draws_left[slot] -= 1
                        found.append(slot)
                used_up = np.array([slot for slot in set(drawn.tolist()) if not draws_left[slot]], np.int64)
                put_aside.append((used_up, self._tree.get(used_up)))
                self._tree.set(used_up, np.zeros(len(used_up)))
        finally:
            for slots, values in put_aside:
                self._tree.set(slots, values)
        return np.array(found, np.int64)

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """See `Sampler.update`."""
        values = (priorities + self._epsilon) ** self._alpha
        if len(values):
            self._largest = max(self._largest, float(values.max()))
        self._tree.set(slots, values)

    def weights(self, slots: Slots, n_entries: int = 1) -> NDArray[np.float32]:
        """See `Sampler.weights`."""
        # In (N P)^-beta divided by the largest, N and the total cancel out.
        values = self._tree.get(slots)
        self.largest_weight = float((n_entries * values.min() / self._tree.total) ** -self._beta)
        weights: NDArray[np.float32] = ((values / values.min()) ** -self._beta).astype(np.float32)
        return weights

    def set_beta(self, beta: float) -> None:
        """See `Sampler.set_beta`."""
        self._beta = beta

    def clear(self) -> None:
        """See `Sampler.clear`. The largest priority is 1 again."""
        self._tree.clear()
        self._largest = 1.0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState(
            {"priorities": self._tree.leaves()},
            {"largest": self._largest, "generator": generator_state(self._rng)},
        )

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        self._tree.load_leaves(_leaves_of(state, self._tree.capacity, MAX_PRIORITY))
        self._largest = state.number("largest", 0.0, MAX_PRIORITY)
        self._rng.bit_generator.state = state.values["generator"]


class LowestPriority(Sampler):
    """Finds the entries with the lowest priorities for removal. Ties are broken arbitrarily; alpha has no effect.

    As in `Prioritized`, new entries get the largest priority so far, so they are removed last.
    """

    bytes_per_slot = MinTree.bytes_per_leaf

    def __init__(self, n_slots: int) -> None:
        """Starts empty.

        Args:
            n_slots: Number of slots.
        """
        self._tree = MinTree(n_slots)
        self._largest = 1.0

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        self._tree.set(slots, np.full(len(slots), self._largest))

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        self._tree.set(slots, np.full(len(slots), np.inf))

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """Returns the n entries with the lowest priorities."""
        return self._tree.smallest(n)

    def update(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        """See `Sampler.update`."""
        if len(priorities):
            self._largest = max(self._largest, float(priorities.max()))
        self._tree.set(slots, priorities)

    def clear(self) -> None:
        """See `Sampler.clear`."""
        self._tree.clear()
        self._largest = 1.0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState({"priorities": self._tree.leaves()}, {"largest": self._largest})

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        self._tree.load_leaves(_leaves_of(state, self._tree.capacity, math.inf))
        self._largest = state.number("largest", 0.0, MAX_PRIORITY)
