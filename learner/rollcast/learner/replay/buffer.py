"""The replay buffer: actors insert entries, and learners draw batches of entries."""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from rollcast.learner.replay.checkpoint import BufferCheckpoint
from rollcast.learner.replay.columns.layout import Slots, make_layout
from rollcast.learner.replay.columns.samples import ReplaySample, SampleRing
from rollcast.learner.replay.free_memory import describe_available
from rollcast.learner.replay.info import BufferInfo
from rollcast.learner.replay.parts import (
    check_positive,
    check_sequences,
    device_of_columns,
    make_limiter,
    make_sampler,
    make_store,
    plan_size,
)
from rollcast.learner.replay.sampling.prioritized import as_priorities, check_priorities
from rollcast.learner.replay.sampling.times_sampled import TimesSampled
from rollcast.learner.replay.saving.part_state import GeneratorPart, Part
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.stores.row_plan import acting_trajectories, fitting_slices, plan_rows
from rollcast.learner.reward_clip import with_clipped_rewards
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import InvalidInputError, LimitExceededError, NotReadyError
from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

# Rooms of a ring: one for the batch in training, one for the batch being drawn, one for a copy still going to a GPU.
N_ROOMS: Final = 3


class ReplayBuffer:
    """A replay buffer: a store of transitions or rollouts, with a sampler and a rate limiter.

        buffer = ReplayBuffer(ReplaySettings(), spaces, n_rollout_steps=32, batch_size=256)
        buffer.insert(rollout)
        sample = buffer.sample(256)
        buffer.update_priorities(sample.keys, priorities)

    Any number of threads may call any method at any time. Each call is one step under one lock. A caller that waits for
    the limiter releases the lock. Only samples belong to one thread: samples drawn without a ring share the buffer's
    arrays, and stay valid until two more are drawn. Threads that sample concurrently need one ring each, from
    `make_ring`.

    Attributes:
        n_rollout_steps: T of every rollout.
        entry: The kind of its entries.
        n_sampled_steps: T of its samples.
        burn_in: The first steps of a sample, which only warm up a recurrent state.
        state_size: S of the stored recurrent states; 0: none.
        frame_stack: K, the frames in each observation of a sample.
        max_trajectories: The number of trajectories in the largest rollout that the limiter accepts; `sys.maxsize`
            without a limit.
        checkpoint: Saves the buffer in checkpoints, and loads it.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        spaces: EnvironmentSpaces,
        *,
        n_rollout_steps: int,
        batch_size: int,
        n_envs: int = 1,
        state_size: int = 0,
        discount: float = 0.99,
        seed: int = 0,
        learner_device: torch.device | str | None = None,
        frame_stack: int = 1,
        announce: Callable[[str], None] = logger.info,
    ) -> None:
        """Plans and announces the buffer's memory, checks that it is available, and allocates it.

        Args:
            settings: The settings of storage and sampling.
            spaces: The environments' spaces by substep key.
            n_rollout_steps: T of every rollout, at least 1.
            batch_size: Entries of a batch.
            n_envs: Environments of the largest rollout; used only with a limit of samples per insert.
            state_size: S of the recurrent states to keep, `PolicySpec.state_size`; 0: none.
            discount: gamma, for n-step folding, in [0, 1].
            seed: Seed of the draws, at least 0.
            learner_device: The device of the columns and samples if the settings' device is `learner`.
            frame_stack: K, the number of frames that the policy sees at once. The buffer stores every frame once.
                Samples have stacks `[K, ...]` for every leaf but the action mask, as in gymnasium's
                FrameStackObservation.
            announce: Called with one line about the memory, before the allocation.

        Raises:
            ConfigurationError: The settings contradict each other, the machine or the device lacks the memory, or the
                device is `learner` without a learner.
            InvalidSpaceError: A space is of an unsupported kind.
        """
        check_positive(n_rollout_steps=n_rollout_steps, batch_size=batch_size, n_envs=n_envs, frame_stack=frame_stack)
        self.n_rollout_steps: Final = n_rollout_steps
        self.entry: Final[Literal["transitions", "rollouts"]] = settings.entry
        sampled = settings.burn_in + (settings.sequence_length or n_rollout_steps)
        self.n_sampled_steps: Final = 1 if settings.entry == "transitions" else sampled
        self.burn_in: Final = settings.burn_in
        self.state_size: Final = state_size
        self.frame_stack: Final = frame_stack
        check_sequences(settings, n_rollout_steps, state_size=state_size)
        self._layout = make_layout(
            RolloutShape(spaces, n_rollout_steps, state_size=state_size, frame_stack=frame_stack),
            log_prob=settings.keeps_log_prob,
        )
        device = device_of_columns(settings, learner_device)
        self._planned = plan_size(settings, self._layout, batch_size=batch_size, device=device)
        announce(f"replay buffer: {self._planned}; {describe_available(device)}")
        self._changed = threading.Condition()  # guards everything below
        max_insert = n_envs * (n_rollout_steps if settings.entry == "transitions" else 1)
        self.max_trajectories: Final = sys.maxsize if settings.samples_per_insert is None else n_envs
        self._limiter = make_limiter(settings, batch_size=batch_size, max_insert=max_insert, changed=self._changed)
        self._store = make_store(settings, self._layout, self._planned, discount=discount)
        sampler_seed, sequence_seed = np.random.SeedSequence(seed).spawn(2)
        self._sampler = make_sampler(settings, self._store, np.random.default_rng(sampler_seed))
        self._rng = np.random.default_rng(sequence_seed)
        self._reward_clip: Final = settings.reward_clip
        most = settings.max_times_sampled
        self._times_sampled = None if most is None else TimesSampled(self._store.n_slots, most)
        self._rings: dict[int, SampleRing] = {}
        self._ignored_updates, self._has_displaced = 0, False
        parts: dict[str, Part] = {"store": self._store, "sampler": self._sampler}
        parts |= {"limiter": self._limiter, "starts": GeneratorPart(self._rng)}
        if self._times_sampled is not None:
            parts["times_sampled"] = self._times_sampled
        self.checkpoint = BufferCheckpoint(self._changed, self._store, parts)

    @property
    def size(self) -> int:
        """The number of entries in the buffer."""
        with self._changed:
            return self._store.size

    @property
    def is_full(self) -> bool:
        """True if the buffer cannot hold more entries. Short episodes can fill it below its capacity.

        See `TrajectoryRing`.
        """
        with self._changed:
            return self._has_displaced or self._store.size >= self._store.capacity

    def insert(
        self,
        rollout: Rollout,
        *,
        timeout_s: float = 0.0,
        is_active: Callable[[], bool] = lambda: True,
        who: str = "",
    ) -> int:
        """Inserts all entries of a rollout, or none. The oldest entries, or those of lowest priority, make room.

        Args:
            rollout: A rollout of the buffer's spaces and T. It is copied.
            timeout_s: The longest wait for the limiter, in seconds.
            is_active: Called at least every second while waiting; the wait ends when it returns False.
            who: A unique name for a caller that retries after each refusal. `info` lists it from its first refusal
                until its rollout enters.

        Returns:
            The number of entries made. Trajectories without a transition make none.

        Raises:
            InvalidRolloutError: The rollout's columns do not match, or a final observation is missing.
            LimitExceededError: The rollout has more entries than the limiter can ever accept.
            NotReadyError: The limiter did not accept the rollout within `timeout_s`; the message has the numbers.
        """
        self._layout.check(rollout)
        rollout = acting_trajectories(rollout)
        n_entries = self._store.n_entries(rollout)
        if not n_entries:
            return 0
        if n_entries > self._limiter.max_insert:
            raise LimitExceededError(
                f"rollout {rollout.sequence} of {rollout.actor_id!r} has {n_entries} entries; expected at most "
                f"{self._limiter.max_insert:g}, the most that the limiter accepts; step fewer environments at once, or "
                "make the buffer with more n_envs"
            )
        fits = self._store.fits(rollout)
        if not fits:
            plan_rows(rollout)  # finds errors of all pieces before the first is inserted
        with self._changed:
            if not self._limiter.await_insert(n_entries, timeout_s, is_active, who=who):
                raise NotReadyError(
                    f"{self._limiter.why_no_insert(n_entries)} (waited up to {timeout_s:g} s); expected room by then; "
                    "sample more, or insert less often"
                )
            for piece in [rollout] if fits else fitting_slices(rollout, self._store.fits):
                self._insert_slice(piece)
        return n_entries

    def load(self, rollouts: Iterable[Rollout]) -> int:
        """Fills an empty buffer with recorded rollouts, without the limiter. The buffer must not be in use yet.

        The limiter counts at most `min_size` of the entries, as if actors had filled the buffer to that size. Further
        entries allow no samples and delay no insertion. The oldest entries, or those with the lowest priorities, make
        room as usual.

        Args:
            rollouts: Rollouts of the buffer's spaces and T, of any number of environments. They are copied.

        Returns:
            The number of entries made.

        Raises:
            InvalidInputError: The buffer is not empty.
            InvalidRolloutError: A rollout's columns do not match, or a final observation is missing. After this, as
                after any exception of the iterator, the buffer is empty.
        """
        if self.size:
            raise InvalidInputError(
                f"cannot load rollouts into a replay buffer of {self.size} entries; expected an empty one; load "
                "before anything is inserted, or reset it"
            )
        n_entries = 0
        try:
            for played in rollouts:
                self._layout.check(played)
                rollout = acting_trajectories(played)
                n_entries += self._store.n_entries(rollout)
                with self._changed:
                    for piece in fitting_slices(rollout, self._store.fits):
                        self._insert_slice(piece)
        except BaseException:
            self.reset()
            raise
        self._limiter.settle()
        return n_entries

    def sample(
        self,
        batch_size: int,
        *,
        ring: SampleRing | None = None,
        timeout_s: float = 0.0,
        is_active: Callable[[], bool] = lambda: True,
        who: str = "",
    ) -> ReplaySample:
        """Draws a batch.

        Args:
            batch_size: B, at least 1.
            ring: The arrays for the batch, from `make_ring` with the same batch size; None: the buffer's arrays.
            timeout_s: The longest wait for the limiter, in seconds.
            is_active: Called at least every second while waiting; the wait ends when it returns False.
            who: A unique name for a caller that retries after each refusal; see `insert`.

        Returns:
            The batch, valid until the ring reuses its arrays.

        Raises:
            InvalidInputError: The buffer has fewer entries than the batch, or the limiter can never accept that many.
            NotReadyError: The buffer holds fewer than `min_size` entries, or the limiter did not accept the batch
                within `timeout_s`; the message has the numbers.
        """
        largest = min(self._store.capacity, self._limiter.max_sample)
        if not 1 <= batch_size <= largest:
            raise InvalidInputError(
                f"a batch of {batch_size} was requested from the replay buffer; expected 1 to {largest} entries, as "
                "its capacity and its limiter allow; change it, or the buffer's batch_size"
            )
        with self._changed:
            if not self._limiter.await_sample(batch_size, timeout_s, is_active, who=who):
                raise NotReadyError(
                    f"{self._limiter.why_no_sample(batch_size)} (waited up to {timeout_s:g} s); expected enough "
                    "entries by then; insert more, or sample less often"
                )
            if self._store.size < batch_size:
                raise InvalidInputError(
                    f"a batch of {batch_size} was requested from a replay buffer that holds {self._store.size} "
                    "entries; "
                    f"expected at most {self._store.size}; insert more first, or ask for a smaller batch"
                )
            room = (ring or self._own_ring(batch_size)).next_room()
            times = self._times_sampled
            slots = self._sampler.sample(batch_size, None if times is None else times.left)
            sample = self._store.gather(slots, room, self._rng)
            weights = self._sampler.weights(slots, self._store.size)
            if weights is not None:
                sample.weights[:] = weights
            if times is not None:
                self._remove(times.count(slots))
            self._limiter.sampled(batch_size)
        return sample

    def make_ring(self, batch_size: int, *, n_rooms: int = N_ROOMS) -> SampleRing:
        """Makes a ring for the samples of one thread.

        Args:
            batch_size: B, at least 1.
            n_rooms: The number of rooms. A sample stays valid until n_rooms - 1 more are drawn.
        """
        return SampleRing(self._store.make_room, batch_size, n_rooms)

    def update_priorities(self, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Sets priorities of entries; if a key occurs twice, the last priority counts.

        Args:
            keys: int64 `[N]`, from `ReplaySample.keys`.
            priorities: `[N]`, in [0, 1e100].

        Returns:
            The number of ignored priorities, whose entries are gone; `info` has the sum.

        Raises:
            InvalidInputError: The lengths differ, or a priority is out of range; then none is set.
        """
        key_array = np.asarray(keys, np.int64)
        priority_array = as_priorities(priorities)
        check_priorities(key_array, priority_array)
        with self._changed:
            slots, is_there = self._store.find(key_array)
            if n_ignored := len(slots) - int(np.count_nonzero(is_there)):
                slots, priority_array = slots[is_there], priority_array[is_there]
                self._ignored_updates += n_ignored
            self._sampler.update(slots, priority_array)
            self._store.update_priorities(slots, priority_array)
        return n_ignored

    def set_beta(self, beta: float) -> None:
        """Sets the degree to which importance weights correct the sampling bias in later batches.

        Does nothing unless the sampler is `prioritized`. In the paper (Schaul et al. 2016, section 3.4 and Algorithm
        1), beta grows linearly to 1 at the end of training.

        Args:
            beta: In [0, 1].

        Raises:
            InvalidInputError: beta is out of range; it keeps its value.
        """
        if not 0.0 <= beta <= 1.0:  # NaN too
            raise InvalidInputError(
                f"beta is {beta}; expected from 0, which corrects no bias, to 1, which corrects all; change it"
            )
        with self._changed:
            self._sampler.set_beta(beta)

    def reset(self) -> None:
        """Removes every entry and sets all counts to 0; keys and random numbers continue."""
        with self._changed:
            self._store.clear()
            self._sampler.clear()
            self._limiter.reset()
            self._ignored_updates, self._has_displaced = 0, False

    def info(self) -> BufferInfo:
        """Returns the state of the buffer now."""
        with self._changed:
            limiter = self._limiter.info()
            return BufferInfo(
                size=self._store.size,
                capacity=self._store.capacity,
                n_bytes=self._planned.n_bytes,
                inserted=limiter.inserts,
                sampled=limiter.samples,
                ignored_updates=self._ignored_updates,
                largest_weight=self._sampler.largest_weight,
                limiter=limiter,
            )

    def wait_of(self, who: str) -> ReplayWaiting | None:
        """Returns the wait of a caller named as in `insert`; None if the caller does not wait, or may continue."""
        return next((wait for wait in self._limiter.info().waiting if wait.who == who), None)

    def stop_waiting(self, who: str) -> None:
        """Removes a caller named as in `insert` from the list of waiting callers."""
        self._limiter.stop_waiting(who)

    def _insert_slice(self, piece: Rollout) -> None:
        change = self._store.insert(with_clipped_rewards(piece, self._reward_clip))
        if len(change.removed):
            self._has_displaced = True
            self._sampler.remove(change.removed)
        self._sampler.insert(change.inserted)
        if self._times_sampled is not None:
            self._times_sampled.insert(change.inserted)
        self._limiter.inserted(len(change.inserted), displaced=len(change.removed))

    def _remove(self, slots: Slots) -> None:
        if len(slots):
            self._sampler.remove(slots)
            self._store.remove(slots)
            self._limiter.removed(len(slots))

    def _own_ring(self, batch_size: int) -> SampleRing:
        if batch_size not in self._rings:
            self._rings[batch_size] = self.make_ring(batch_size)
        return self._rings[batch_size]
