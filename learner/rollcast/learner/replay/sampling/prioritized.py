"""Prioritised sampling, and removal of the entry with the lowest priority.

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

# Far above any priority that means something, and far enough below the largest float64 for sums over 1e9 entries.
MAX_PRIORITY = 1e100


def as_priorities(values: ArrayLike) -> NDArray[np.float64]:
    """Priorities as a buffer reckons with them; yet to be checked.

    Args:
        values: Numbers, of any dtype and shape. NaN stays NaN, without numpy's warning for those that signal.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(values, np.float64)


def check_priorities(keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
    """Refuses priorities that cannot be right.

    Args:
        keys: int64 `[N]`, whose they are.
        priorities: float64 `[N]`.

    Raises:
        InvalidInputError: If there are not as many of the one as of the other, or a priority is negative, NaN or above
            1e100; the message has the first.
    """
    if keys.ndim != 1 or keys.shape != priorities.shape:
        raise InvalidInputError(
            f"there are keys of shape {list(keys.shape)} and priorities of shape {list(priorities.shape)}; expected "
            "one priority for each key, in one dimension; pass as many"
        )
    right = (priorities >= 0.0) & (priorities <= MAX_PRIORITY)  # of NaN, neither is true
    if not right.all():
        index = int(right.argmin())
        raise InvalidInputError(
            f"the priority at index {index} (key {keys[index]}) is {priorities[index]}; expected a number from 0 to "
            f"{MAX_PRIORITY:g}; find where it comes from, an error that is NaN or not its absolute value"
        )


def _leaves_of(state: PartState, n_leaves: int, largest: float) -> NDArray[np.float64]:
    """Priorities in [0, largest].

    Raises:
        ValueError: There are others.
    """
    leaves = state.array("priorities", (n_leaves,), np.float64)
    if not ((leaves >= 0.0) & (leaves <= largest)).all():
        raise ValueError(f"priorities are from {leaves.min()} to {leaves.max()}; expected them in [0, {largest:g}]")
    return leaves


class Prioritized(Sampler):
    """Draws entry i with probability P(i) = p_i^alpha / sum_k p_k^alpha (equation 1), stratified.

    p_i = |delta_i| + epsilon (section 3.3), where |delta_i| is the priority that `update` gives: so an entry of error 0
    can be drawn again, and where all errors are 0 each is as likely as another. A new entry gets the largest p_i so far
    (1 before any), so that each is seen soon. Importance weights are (N P(i))^-beta, divided by the largest of the
    batch (section 3.4).

    Invariant: the leaf of every entry is above 0, that of every other slot is 0.
    """

    bytes_per_slot = SumTree.bytes_per_leaf

    def __init__(
        self, n_slots: int, rng: np.random.Generator, *, alpha: float, beta: float, epsilon: float = 1e-6
    ) -> None:
        """Starts empty.

        Args:
            n_slots: Slots are below it.
            rng: Its own generator.
            alpha: How much priorities count, in [0, 1]; 0: not at all.
            beta: How much of the bias the weights take back, in [0, 1]; until `set_beta`.
            epsilon: What is added to every priority, above 0.
        """
        self._rng = rng
        self._alpha = alpha
        self._epsilon = epsilon
        self._beta = beta
        self._tree = SumTree(n_slots)
        self._n = 0
        self._largest = 1.0  # to the power of alpha

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        self._tree.set(slots, np.full(len(slots), self._largest))
        self._n += len(slots)

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        self._tree.set(slots, np.zeros(len(slots)))
        self._n -= len(slots)

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """See `Sampler.sample`; an entry can come more than once. In ascending order of slots."""
        slots = self._tree.sample(self._rng, n)
        if left is None:
            return slots
        distinct, times = np.unique(slots, return_counts=True)
        return slots if (times <= left(distinct)).all() else self._sample_limited(n, left)

    def _sample_limited(self, n: int, left: DrawsLeft) -> Slots:
        """Draws again and again, without what has no draw left; each round finds one entry at least."""
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

    def weights(self, slots: Slots) -> NDArray[np.float32]:
        """See `Sampler.weights`."""
        # (N P)^-beta over its largest: N and the total cancel out.
        values = self._tree.get(slots)
        weights: NDArray[np.float32] = ((values / values.min()) ** -self._beta).astype(np.float32)
        return weights

    def set_beta(self, beta: float) -> None:
        """See `Sampler.set_beta`."""
        self._beta = beta

    def clear(self) -> None:
        """See `Sampler.clear`; the largest priority is 1 again."""
        self._tree.clear()
        self._n = 0
        self._largest = 1.0

    def state(self) -> PartState:
        """See `Sampler.state`."""
        return PartState(
            {"priorities": self._tree.leaves()},
            {"n": self._n, "largest": self._largest, "generator": generator_state(self._rng)},
        )

    def load_state(self, state: PartState) -> None:
        """See `Sampler.load_state`."""
        self._tree.load_leaves(_leaves_of(state, self._tree.capacity, MAX_PRIORITY))
        self._n = state.whole("n", 0, self._tree.capacity)
        self._largest = state.number("largest", 0.0, MAX_PRIORITY)
        self._rng.bit_generator.state = state.values["generator"]


class LowestPriority(Sampler):
    """The entries with the lowest priorities; among equals any. For removal, so alpha does not matter.

    New entries get the largest priority given so far, as those of `Prioritized`, and are the last to go.
    """

    bytes_per_slot = MinTree.bytes_per_leaf

    def __init__(self, n_slots: int) -> None:
        """Starts empty.

        Args:
            n_slots: Slots are below it.
        """
        self._tree = MinTree(n_slots)
        self._largest = 1.0

    def insert(self, slots: Slots) -> None:
        """See `Sampler.insert`."""
        self._tree.set(slots, np.full(len(slots), self._largest))

    def remove(self, slots: Slots) -> None:
        """See `Sampler.remove`."""
        self._tree.unset(slots)

    def sample(self, n: int, left: DrawsLeft | None = None) -> Slots:
        """The n entries with the lowest priorities."""
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
