"""Makes the store, sampler and limiter of a buffer from its settings, and first computes their memory."""

import math
import threading
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rollcast.learner.devices.copier import make_copier
from rollcast.learner.replay.columns.device_memory import DeviceMemory
from rollcast.learner.replay.columns.layout import EntryLayout, StoredBytes
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory
from rollcast.learner.replay.free_memory import check_memory, format_bytes
from rollcast.learner.replay.rate_limiter import RateLimiter
from rollcast.learner.replay.sampling.base import Sampler
from rollcast.learner.replay.sampling.insertion_order import Fifo, Lifo
from rollcast.learner.replay.sampling.prioritized import LowestPriority, Prioritized
from rollcast.learner.replay.sampling.times_sampled import TimesSampled
from rollcast.learner.replay.sampling.uniform import Uniform, UniformRows
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.replay.stores.base import EntryStore
from rollcast.learner.replay.stores.rollouts import RolloutStore, rollout_bytes
from rollcast.learner.replay.stores.slots import SlotStore
from rollcast.learner.replay.stores.trajectory_ring import TrajectoryRing, ring_rows
from rollcast.learner.replay.stores.transitions import TransitionStore, transition_bytes
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicySpec


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The capacity of a buffer, and its memory.

    Attributes:
        entry: The kind of its entries.
        capacity: The largest number of entries.
        batch_size: Entries of a batch.
        n_bytes: Bytes of the arrays, including the sampler's arrays.
        device: The device of its columns; None: main memory, as numpy arrays.
        device_bytes: The part of these bytes in the device's own memory; 0 for a CPU.
    """

    entry: Literal["transitions", "rollouts"]
    capacity: int
    batch_size: int
    n_bytes: int
    device: torch.device | None = None
    device_bytes: int = 0

    @property
    def entries(self) -> str:
        """A text for messages: the number of entries, their kind, and the bytes of one entry."""
        return f"{self.capacity:,} {self.entry} of {self.n_bytes / self.capacity:,.1f} bytes"

    def __str__(self) -> str:
        """Describes capacity and memory for messages. Device memory is listed apart from main memory."""
        text = f"{self.entries}, {format_bytes(self.n_bytes)} in all"
        if not self.device_bytes:
            return text
        main = format_bytes(self.n_bytes - self.device_bytes)
        return f"{text}: {format_bytes(self.device_bytes)} on {self.device}, {main} in main memory"

    def check_memory(self) -> None:
        """Refuses a size that does not fit into the machine's or the device's memory.

        Raises:
            ConfigurationError: There is not enough memory.
        """
        main_bytes = self.n_bytes - self.device_bytes
        check_memory(main_bytes, self.device, self.device_bytes, what=f"a replay buffer of {self.entries}")


def check_positive(**arguments: int) -> None:
    """Refuses arguments below 1.

    Raises:
        ConfigurationError: An argument is below 1; the message names it.
    """
    for name, value in arguments.items():
        if value < 1:
            raise ConfigurationError(f"{name} is {value}; expected at least 1; raise it")


def check_sequences(settings: ReplaySettings, n_rollout_steps: int, *, state_size: int) -> None:
    """Checks that sequences fit into a rollout, and begin at a known recurrent state.

    Args:
        settings: Settings with the entry, the sequence length and the burn-in.
        n_rollout_steps: T of every rollout.
        state_size: S of the recurrent states to keep; 0: none.

    Raises:
        ConfigurationError: A sequence is too long, or begins at an unknown state. Or entries are transitions, which
            have no recurrent state.
    """
    if state_size and settings.entry == "transitions":
        raise ConfigurationError(
            "entry is 'transitions' with a recurrent policy; expected 'rollouts', because a replay buffer keeps no "
            "recurrent states of single steps; set entry to rollouts, or recurrence to none"
        )
    if settings.sequence_length is None:
        return
    n_sampled = settings.burn_in + settings.sequence_length
    given = f"burn_in is {settings.burn_in} and sequence_length {settings.sequence_length}"
    if n_sampled > n_rollout_steps:
        raise ConfigurationError(
            f"{given}; expected together at most the {n_rollout_steps} steps of a rollout; lower one of them or raise "
            "n_rollout_steps"
        )
    if state_size and n_sampled < n_rollout_steps:
        raise ConfigurationError(
            f"{given} with a recurrent policy; expected together the {n_rollout_steps} steps of a rollout, because its "
            f"state is stored for the first step only; raise one of them, or set n_rollout_steps to {n_sampled}"
        )


def check_replayable(spec: PolicySpec, *, entry: str, state_size: int, frame_stack: int) -> None:
    """Checks that a buffer keeps all columns of a policy's rollouts.

    Args:
        spec: The architecture of the policy.
        entry: The kind of the buffer's entries.
        state_size: S of the recurrent states that the buffer keeps; 0: none.
        frame_stack: K, the frames in each observation of the buffer's samples.

    Raises:
        ConfigurationError: The buffer does not keep a column.
    """
    if spec.state_size and entry == "transitions":
        raise ConfigurationError(
            f"the policy has recurrence {spec.recurrence}, and a replay buffer keeps no recurrent states of "
            "transitions; expected rollouts as its entries, or no recurrence; choose --replay.entry rollouts "
            "(split_rollouts_into_transitions=False), or --recurrence none"
        )
    if spec.state_size != state_size:
        raise ConfigurationError(
            f"the policy has recurrence {spec.recurrence} with states of {spec.state_size} numbers, and the replay "
            f"buffer keeps {state_size}; expected the same; make the buffer with state_size={spec.state_size}"
        )
    if spec.frame_stack != frame_stack:
        raise ConfigurationError(
            f"the policy sees {spec.frame_stack} frames at once, and the replay buffer has frame_stack {frame_stack}; "
            f"expected the same; make the buffer with frame_stack={spec.frame_stack}"
        )


def device_of_columns(settings: ReplaySettings, learner_device: torch.device | str | None) -> torch.device | None:
    """Returns the device for the columns; None: main memory, as numpy arrays.

    Args:
        settings: Settings with the device, `cpu` or `learner`.
        learner_device: The learner's device; None: no learner.

    Raises:
        ConfigurationError: The device is `learner`, without a learner.
    """
    if settings.device == "cpu":
        return None
    if learner_device is None:
        raise ConfigurationError(
            "the replay buffer's device is 'learner', and this process has no learner, or its device was not given; "
            "expected 'cpu' here; set it, or give the buffer a learner_device"
        )
    return torch.device(learner_device)


def plan_size(
    settings: ReplaySettings, layout: EntryLayout, *, batch_size: int, device: torch.device | None = None
) -> BufferSize:
    """Computes the largest capacity within the limits, and its memory, without an allocation.

    Args:
        settings: Settings with the capacity in entries, and in bytes.
        layout: Layout of the entries.
        batch_size: Entries of a batch.
        device: The device of the columns; None: main memory, as numpy arrays.

    Raises:
        ConfigurationError: The capacity is below a batch, the minimum size, or one rollout of a single environment.
    """
    capacity = settings.capacity
    if settings.capacity_bytes is not None:
        capacity = _largest_capacity(settings, layout, settings.capacity_bytes, batch_size=batch_size)
    stored = _bytes(settings, layout, capacity, batch_size=batch_size)
    device_bytes = 0 if device is None or device.type == "cpu" else stored.columns
    size = BufferSize(settings.entry, capacity, batch_size, stored.total, device, device_bytes)
    limit = "" if settings.capacity_bytes is None else f" (in {format_bytes(settings.capacity_bytes)})"
    min_size = batch_size if settings.min_size is None else settings.min_size
    if min_size < batch_size:
        raise ConfigurationError(
            f"min_size is {min_size}, below the batch_size of {batch_size}; expected at least {batch_size}, or the "
            "first batch would need more entries than the buffer has; raise min_size or leave it empty"
        )
    smallest = 1 if settings.entry == "rollouts" else layout.n_rollout_steps
    for least, what in (
        (batch_size, f"a batch of {batch_size}"),
        (min_size, f"the min_size of {min_size}"),
        (smallest, f"the {smallest} steps of one rollout"),
    ):
        if capacity < least:
            raise ConfigurationError(
                f"the replay buffer holds {capacity} entries{limit}, fewer than {what}; expected at least {least}; "
                "raise capacity and capacity_bytes, or lower that number"
            )
    return size


def make_store(settings: ReplaySettings, layout: EntryLayout, size: BufferSize, *, discount: float) -> EntryStore:
    """Allocates the store according to the settings.

    Args:
        settings: The buffer's settings.
        layout: Layout of the entries.
        size: The size that `plan_size` computed.
        discount: gamma.

    Raises:
        ConfigurationError: The machine or the device lacks the memory.
    """
    size.check_memory()
    memory: ColumnMemory = MainMemory() if size.device is None else DeviceMemory(make_copier(size.device))
    if settings.entry == "transitions" and settings.removal == "oldest":
        return TrajectoryRing(
            layout,
            size.capacity,
            batch_size=size.batch_size,
            n_step=settings.n_step,
            discount=discount,
            memory=memory,
        )
    remover = LowestPriority(size.capacity) if settings.removal == "lowest_priority" else Fifo(size.capacity)
    if settings.entry == "transitions":
        return TransitionStore(layout, size.capacity, remover, n_step=settings.n_step, discount=discount, memory=memory)
    return RolloutStore(
        layout,
        size.capacity,
        remover,
        sequence_length=settings.sequence_length,
        burn_in=settings.burn_in,
        discount=discount,
        memory=memory,
    )


def make_sampler(settings: ReplaySettings, store: EntryStore, rng: np.random.Generator) -> Sampler:
    """Makes the sampler according to the settings.

    Args:
        settings: The buffer's settings.
        store: The buffer's store.
        rng: A generator for this sampler only.
    """
    if settings.sampler == "prioritized":
        return Prioritized(
            store.n_slots, rng, alpha=settings.alpha, beta=settings.beta, epsilon=settings.priority_epsilon
        )
    if settings.sampler == "fifo":
        return Fifo(store.n_slots)
    if settings.sampler == "lifo":
        return Lifo(store.n_slots)
    if isinstance(store, TrajectoryRing) and settings.max_times_sampled is None:
        return UniformRows(store, store.n_slots, rng)
    return Uniform(store.n_slots, rng)


def make_limiter(
    settings: ReplaySettings, *, batch_size: int, max_insert: int, changed: threading.Condition
) -> RateLimiter:
    """Makes the limiter according to the settings.

    Args:
        settings: The buffer's settings.
        batch_size: Entries of a batch.
        max_insert: Entries of the largest rollout.
        changed: The buffer's lock.

    Raises:
        ConfigurationError: The settings could make both sides wait for each other.
    """
    min_size = batch_size if settings.min_size is None else settings.min_size
    return RateLimiter(
        settings.samples_per_insert,
        min_size=min_size,
        error_buffer=settings.error_buffer,
        max_insert=max_insert,
        max_sample=batch_size,
        changed=changed,
    )


def _bytes(settings: ReplaySettings, layout: EntryLayout, capacity: int, *, batch_size: int) -> StoredBytes:
    n_slots = capacity
    if settings.entry == "rollouts":
        stored = rollout_bytes(layout)
    elif settings.removal == "lowest_priority":
        stored = transition_bytes(layout)
    else:
        n_slots = ring_rows(capacity, layout.n_rollout_steps, batch_size, layout.frame_stack)
        stored = layout.step_bytes
    stored = stored.times(n_slots)
    is_ring = settings.entry == "transitions" and settings.removal == "oldest"
    per_slot = 0.0
    if not is_ring:
        remover: type[Sampler] = LowestPriority if settings.removal == "lowest_priority" else Fifo
        per_slot += SlotStore.bytes_per_slot + 1 + remover.bytes_per_slot
    if settings.max_times_sampled is not None:
        per_slot += TimesSampled.bytes_per_slot
    samplers: dict[str, type[Sampler]] = {"prioritized": Prioritized, "fifo": Fifo, "lifo": Lifo, "uniform": Uniform}
    if not (settings.sampler == "uniform" and is_ring and settings.max_times_sampled is None):
        per_slot += samplers[settings.sampler].bytes_per_slot
    return StoredBytes(stored.columns, stored.bookkeeping + math.ceil(n_slots * per_slot))


def _largest_capacity(settings: ReplaySettings, layout: EntryLayout, n_bytes: int, *, batch_size: int) -> int:
    """Returns the largest capacity within the settings and the bytes; 0 if no entry fits."""
    low, high = 0, settings.capacity
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes(settings, layout, middle, batch_size=batch_size).total <= n_bytes:
            low = middle
        else:
            high = middle - 1
    return low
