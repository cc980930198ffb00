"""Stands for torch.cuda without a GPU: what streams, captures, allocator and generators remember, and no numbers.

It follows torch's CUDAGraph.cpp, CUDAGeneratorImpl.cpp and CUDACachingAllocator.cpp.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import pytest
import torch

# Which names torch._C has, and whether torch ends a failed capture itself.
Torch = Literal["2.6", "2.8", "2.12"]


class StandInCuda:
    """The GPUs as a process sees them.

    Attributes:
        device: A device that no other has, because the process keeps what belongs to a device.
        streams: All streams that were made.
        captures_underway: The memory of the captures for which the allocator holds back what is freed.
        pinned_underway: The memory of the captures that the allocator of pinned memory knows.
        n_graphs: The graphs in each memory, by its name.
    """

    _indices: ClassVar[Iterator[int]] = itertools.count(40)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: Torch = "2.12") -> None:
        self.device = torch.device("cuda", next(self._indices))
        self.version = version
        self.streams: list[Stream] = []
        self.captures_underway: list[int] = []
        self.pinned_underway: list[int] = []
        self.n_graphs: dict[int, int] = {}
        self._current = Stream(self)
        self.streams.clear()
        self.default = Generator()
        names = itertools.count(1)
        replaced: dict[str, Any] = {
            "Stream": lambda device: Stream(self),
            "stream": self._on,
            "current_stream": lambda device: self._current,
            "device": lambda device: nullcontext(),
            "CUDAGraph": lambda: Graph(self),
            "graph": self._capture,
            "graph_pool_handle": lambda: next(names),
            "default_generators": [self.default] * 128,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch, "Generator", Generator)
        known = {"2.6": "_cuda_endAllocateCurrentStreamToPool"}.get(version, "_cuda_endAllocateToPool")
        for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
            monkeypatch.delattr(torch._C, name, raising=False)
        monkeypatch.setattr(torch._C, known, self.end_allocation, raising=False)

    def end_allocation(self, device: int, pool: int) -> None:
        del device
        if pool not in self.captures_underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.captures_underway.remove(pool)

    @contextmanager
    def _on(self, stream: "Stream") -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        # Only here: as in torch, an error within leaves the stream to the block around it.
        self._current = before

    @contextmanager
    def _capture(self, graph: "Graph", *, pool: int, stream: "Stream", capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        assert stream in self.streams
        graph.begin(pool)
        try:
            yield
        except BaseException:
            graph.end(fails=True)
            raise
        graph.end(fails=False)


class Stream:
    """A stream, which does nothing."""

    def __init__(self, cuda: StandInCuda) -> None:
        cuda.streams.append(self)

    def wait_stream(self, other: "Stream") -> None:
        """Does nothing."""


class State:
    """The state of a generator, which graphs register."""

    def __init__(self) -> None:
        self.offset = 0
        self.is_captured = False


class Generator:
    """A generator, which counts its draws."""

    def __init__(self, device: object = None) -> None:
        self.state = State()

    def draw(self) -> int:
        if self.state.is_captured:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.state.offset += 4
        return self.state.offset

    def get_state(self) -> int:
        return self.state.offset

    def set_state(self, state: int) -> None:
        self.state.offset = state

    def graphsafe_get_state(self) -> "Generator":
        return self

    def graphsafe_set_state(self, other: "Generator") -> None:
        self.state = other.state


class Graph:
    """A graph of torch."""

    def __init__(self, cuda: StandInCuda) -> None:
        self._cuda = cuda
        self._pool: int | None = None
        self._states = [cuda.default.state]

    def register_generator_state(self, generator: Generator) -> None:
        self._states.append(generator.state)

    def begin(self, pool: int) -> None:
        assert self._cuda.n_graphs.get(pool) != 0, "torch's internal assertion: use_count > 0"
        self._cuda.n_graphs[pool] = self._cuda.n_graphs.get(pool, 0) + 1
        if pool in self._cuda.captures_underway + self._cuda.pinned_underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._cuda.captures_underway.append(pool)
        self._cuda.pinned_underway.append(pool)
        self._pool = pool
        self._set_captured(True)

    def end(self, *, fails: bool) -> None:
        assert self._pool is not None
        if not fails or self._cuda.version == "2.12":
            self._cuda.captures_underway.remove(self._pool)
            self._cuda.pinned_underway.remove(self._pool)
            self._set_captured(False)
        if fails:
            self._pool = None  # which is never released
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        assert self._pool is not None

    def _set_captured(self, is_captured: bool) -> None:
        for state in self._states:
            state.is_captured = is_captured

    def __del__(self) -> None:
        if self._pool is not None:
            self._cuda.n_graphs[self._pool] -= 1


def drawn(generators: Sequence[Generator]) -> list[int]:
    """Draws once from each generator."""
    return [generator.draw() for generator in generators]
