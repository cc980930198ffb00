"""Replays the device's part of updates as CUDA graphs: the host launches one graph instead of each kernel.

On the CPU, `unit/learner/devices/test_graphs.py` shows that an update repeats the same operations on the same memory
for any batch and numbers, as a graph needs. Tests marked `gpu` cover the rest.
"""

import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.devices.choice import with_index
from rollcast.learner.devices.streams import streams_of
from rollcast.learner.devices.waits import WaitDetector
from rollcast.learner.devices.work import DeviceWork, Outputs, Work
from rollcast.services.columns.table import FINAL_AXES

logger = logging.getLogger(__name__)

# Updates that run as they are before one is captured: torch's libraries choose their kernels in them, and optimisers
# make their state.
WARM_UP_UPDATES: Final = 3
# The largest number of graphs of an algorithm, each with its own memory. More shapes mean that batches keep changing.
MAX_GRAPHS: Final = 8
# The smallest room of a graph for final observations.
_LEAST_FINALS: Final = 8
# The factor of the room if there are more final observations than trajectories.
_MORE_FINALS: Final = 4


class Graph(Protocol):
    """Work that can be replayed: a CUDA graph, or a test double."""

    def warm_up(self, run: Callable[[], Outputs]) -> Outputs:
        """Runs work without a graph, on the stream of a later capture."""

    def capture(self, run: Callable[[], None]) -> None:
        """Records the kernels that `run` launches, without running them."""

    def replay(self) -> None:
        """Runs the kernels again, on the same memory."""


class _GraphMemory:
    """The memory that all graphs of a GPU share, because only one is replayed at a time.

    torch must not get its name again after the last graph in it is gone, so it lives as long as its graphs.

    Attributes:
        pool: The memory pool's name for torch.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()


_memories: Final[weakref.WeakValueDictionary[torch.device, _GraphMemory]] = weakref.WeakValueDictionary()
# Graphs whose capture has failed: torch's allocator of pinned memory may still query their state.
_failed: Final[list[torch.cuda.CUDAGraph]] = []


class CudaGraph:
    """A CUDA graph of one device.

    Args:
        device: The device.
        generators: The generators of the work: each replay continues where the last one ended.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._device = with_index(device)
        self._graph = torch.cuda.CUDAGraph()
        self._stream = streams_of(self._device).capture
        self._memory: _GraphMemory | None = None
        # torch registers its own generator of the device by itself.
        self._generators = [*generators, torch.cuda.default_generators[self._device.index]]
        for generator in generators:
            self._graph.register_generator_state(generator)

    def warm_up(self, run: Callable[[], Outputs]) -> Outputs:
        """Runs work on the graph's stream, after the current stream's earlier work and before its later work."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = run()
        current.wait_stream(self._stream)
        return outputs

    def capture(self, run: Callable[[], None]) -> None:
        """Captures the work; see `Graph.capture`. Restores allocator and generators after an error."""
        # Late, because an earlier graph may have been the last one in the previous memory.
        self._memory = memory = _memories.get(self._device) or _GraphMemory()
        _memories[self._device] = memory
        states = [generator.get_state() for generator in self._generators]
        try:
            # The outer block restores the stream: a capture that fails leaves it on its own.
            with (
                torch.cuda.device(self._device),
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                # Other threads copy batches and policies at the same time, which must not break the capture.
                torch.cuda.graph(self._graph, pool=memory.pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                run()
        except BaseException:
            self._unwind(memory, states)
            raise

    def _unwind(self, memory: _GraphMemory, states: Sequence[Tensor]) -> None:
        """Cleans up after a failed capture in torch 2.6 to 2.11; newer versions do this themselves.

        Otherwise their allocator frees no block that another stream has used until all captures have ended. A generator
        that was registered draws no numbers any more.

        Args:
            memory: The memory of the failed capture. It stays reserved, and no other graph may use it.
            states: The generators' states before the capture.
        """
        _failed.append(self._graph)
        _memories.pop(self._device, None)
        # The first is its name since torch 2.8.
        for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
            if (end := getattr(torch._C, name, None)) is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    end(self._device.index, memory.pool)
                break
        for generator, state in zip(self._generators, states, strict=True):
            fresh = torch.Generator(self._device)
            fresh.set_state(state)
            # In place of the state that takes itself for captured, not into it.
            generator.graphsafe_set_state(fresh.graphsafe_get_state())

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        self._graph.replay()


class GraphedWork(DeviceWork):
    """Captures the work of an update after warm-up, and replays it from then on.

    Batches and numbers are copied into fixed memory. The memory has room for more final observations than a batch has.
    The graph ignores unused room; see `Batch.final_index`. A batch with more final observations, another shape or
    another variant of the work is captured, too, up to `MAX_GRAPHS` times. If the work waits for the device, a capture
    fails, or shapes keep changing, all later updates run without graphs, and one warning is logged.

    Only the algorithm's thread uses it.

    Args:
        make_graph: Makes a graph.
    """

    def __init__(self, make_graph: Callable[[], Graph]) -> None:
        self._make_graph = make_graph
        self._plans: dict[Hashable, _Plan] = {}
        self._n_plans = 0
        self._has_given_up = False
        self._n_runs = self._n_replayed = 0
        self._n_taken = 0, 0

    def run(self, work: Work, batch: Batch, numbers: Mapping[str, float], variant: Hashable = None) -> Outputs:
        """Runs the work of an update, or replays it; see `DeviceWork.run`."""
        self._n_runs += 1
        if self._has_given_up or not batch.n_env_steps:
            return work(batch, numbers)
        plan = self._plan_for(batch, numbers, variant)
        if plan is None:
            return work(batch, numbers)
        plan.load(batch, numbers)
        if plan.n_updates < WARM_UP_UPDATES:
            plan.n_updates += 1
            # In the last warm-up, because the first ones also allocate persistent memory.
            with WaitDetector() if plan.n_updates == WARM_UP_UPDATES else contextlib.nullcontext() as waits:
                outputs = plan.graph.warm_up(lambda: work(plan.batch, plan.numbers))
            if waits is not None and waits.found:
                self._give_up(
                    f"they wait for the device, or copy from main memory: {', '.join(dict.fromkeys(waits.found))}"
                )
            return outputs
        if not plan.is_captured:
            try:
                plan.capture(work)
            except Exception as error:  # noqa: BLE001 - whatever it is: nothing was run; the update continues without
                reason = str(error).partition("\n")[0]  # CUDA's errors go on with general advice
                self._give_up(f"the capture failed: {type(error).__name__}: {reason}")
                return work(batch, numbers)
            if not self._n_replayed:
                logger.info("updates are replayed as CUDA graphs from now on")
        plan.graph.replay()
        self._n_replayed += 1
        return plan.outputs()

    def take_replayed(self) -> tuple[int, int]:
        """See `DeviceWork.take_replayed`."""
        (n_replayed, n_runs), now = self._n_taken, (self._n_replayed, self._n_runs)
        self._n_taken = now
        return now[0] - n_replayed, now[1] - n_runs

    def forget(self) -> None:
        """Drops all graphs, whose memory belongs to optimisers that a checkpoint has replaced."""
        self._plans.clear()
        self._n_plans = 0

    def _plan_for(self, batch: Batch, numbers: Mapping[str, float], variant: Hashable) -> "_Plan | None":
        """Returns the plan for batches of this shape; None after too many shapes."""
        key = variant, tuple(numbers), batch.burn_in, *((name, *_shape_of(leaf)) for name, leaf in _tensors(batch))
        plan, n_finals = self._plans.get(key), len(batch.final_index)
        if plan is not None and len(plan.batch.final_index) >= n_finals:
            return plan
        if self._n_plans == MAX_GRAPHS:
            self._give_up(f"batches have more than {MAX_GRAPHS} shapes")
            return None
        self._n_plans += 1
        plan = self._plans[key] = _Plan(self._make_graph(), batch, numbers)
        return plan

    def _give_up(self, reason: str) -> None:
        self._has_given_up = True
        self._plans.clear()
        logger.warning("updates run without CUDA graphs from now on, which is slower but equally correct: %s", reason)


class _Plan:
    """The memory for updates of one shape, and their graph.

    Attributes:
        graph: Captures and replays them.
        batch: The batch of these updates.
        numbers: Their numbers, float32 0-dim on the batch's device.
        n_updates: The number of updates without a graph so far.
        is_captured: True once the graph can be replayed.
    """

    def __init__(self, graph: Graph, batch: Batch, numbers: Mapping[str, float]) -> None:
        self.graph = graph
        self.batch = with_room(batch)
        self.numbers = {name: torch.zeros((), device=batch.reward.device) for name in numbers}
        self.n_updates = 0
        self.is_captured = False
        self._pairs = dict(_tensors(self.batch))
        self._outputs: dict[str, Tensor | float] = {}
        self._names: list[str] = []
        self._values = torch.zeros(0)

    def load(self, batch: Batch, numbers: Mapping[str, float]) -> None:
        """Copies a batch and numbers into the memory of this plan. Does not wait for the device."""
        for name, leaf in _tensors(batch):
            self._pairs[name].copy_(leaf, non_blocking=True)
        n = len(batch.final_index)
        self.batch.final_index[:, 0].fill_(len(batch.reward))
        self.batch.final_index[:n].copy_(batch.final_index, non_blocking=True)
        for key, columns in batch.substeps.items():
            room = self.batch.substeps[key].final_observation
            for path, leaf in columns.final_observation.items():
                room[path][:n].copy_(leaf, non_blocking=True)
        # A number is an argument of its kernel: unlike a copy, it needs no memory that must wait for the device.
        for name, value in numbers.items():
            self.numbers[name].fill_(value)

    def capture(self, work: Work) -> None:
        """Captures the work."""

        def run() -> None:
            self._outputs = dict(work(self.batch, self.numbers))
            self._names = [n for n, value in self._outputs.items() if isinstance(value, Tensor) and not value.dim()]
            self._values = torch.stack([torch.as_tensor(self._outputs[name]).float() for name in self._names])

        self.graph.capture(run)
        self.is_captured = True

    def outputs(self) -> Outputs:
        """Returns copies of the last replay's results, because the next replay writes to the same memory."""
        copies = {
            name: value.clone() if isinstance(value, Tensor) and value.dim() else value
            for name, value in self._outputs.items()
        }
        return {**copies, **dict(zip(self._names, self._values.clone().unbind(), strict=True))}


def with_room(batch: Batch) -> Batch:
    """Returns memory for batches of the same shapes, with room for at least the batch's number of final observations.

    Episodes with a time limit may all end in the same batch, once each. The memory has room for that from the start, so
    few batches need a separate graph.

    Args:
        batch: Trajectories `[T, B, ...]` with N final observations.

    Returns:
        A batch of zeros. Its B or more final observations belong to no step, and are copies of one from the batch.
    """
    n_rows, n_finals = batch.reward.numel(), len(batch.final_index)
    least = max(_LEAST_FINALS, batch.reward.shape[1])
    n_finals = min(n_rows, least if n_finals <= least else _MORE_FINALS * n_finals)
    if batch.reward.shape[0] == 1 and not len(batch.final_index):
        n_finals = 0  # transitions have none
    index = torch.zeros(n_finals, 2, dtype=torch.int64, device=batch.reward.device)
    index[:, 0] = len(batch.reward)
    rest: dict[str, Any] = {
        name: torch.zeros_like(leaf) for name in _OWN_TENSORS if (leaf := getattr(batch, name)) is not None
    }
    return dataclasses.replace(
        batch,
        substeps={key: _columns_with_room(columns, n_finals) for key, columns in batch.substeps.items()},
        final_index=index,
        episodes=(),
        events=(),
        keys=None,
        **rest,
    )


# The tensors of a batch, besides those of its substeps and the final observations' places.
_OWN_TENSORS: Final = ("reward", "terminated", "truncated", "valid", "weights", "discount", "overridden")


def _columns_with_room(columns: BatchColumns, n_finals: int) -> BatchColumns:
    # Networks also see unused final observations, so these must be valid: zeros may be outside the space.
    finals = {
        path: columns.last_observation[path][:1].repeat(n_finals, *[1] * (leaf.dim() - 1))
        for path, leaf in columns.final_observation.items()
    }
    return dataclasses.replace(columns.map(torch.zeros_like, BatchColumns), final_observation=finals)


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors with the same shapes in every batch, by name: all but the final observations."""
    for name in _OWN_TENSORS:
        if (leaf := getattr(batch, name)) is not None:
            yield name, leaf
    for key, columns in batch.substeps.items():
        for column, path, leaf in columns.leaves():
            if column.axes != FINAL_AXES:
                yield f"{key}/{column.name}/{path}", leaf


def _shape_of(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    """Returns shape and dtype, which determine the kernels."""
    return tensor.shape, tensor.dtype
