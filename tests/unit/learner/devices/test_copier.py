"""The seam for copies: on the CPU, on a GPU if there is one, and the copier of the tests, which finds what is early."""

import threading

import numpy as np
import pytest
import torch

from rollcast.learner.devices.copier import Copier, CudaCopier, ImmediateCopier, make_copier
from rollcast.learner.devices.graphs import CudaGraph
from rollcast.learner.devices.staging import Staging, send_together
from rollcast.learner.devices.streams import streams_of
from rollcast.services.errors import InvalidInputError
from tests.delayed_copier import POISON, DelayedCopier
from tests.stand_in_cuda import StandInCuda


@pytest.fixture(
    params=[
        lambda: make_copier("cpu"),
        DelayedCopier,
        pytest.param(lambda: make_copier("cuda"), marks=pytest.mark.gpu),
    ],
    ids=["immediate", "delayed", "cuda"],
)
def copier(request: pytest.FixtureRequest) -> Copier:
    return request.param()


def host_values(copier: Copier, *values: int) -> torch.Tensor:
    host = copier.host_memory(8 * len(values)).view(torch.int64)
    host[:] = torch.tensor(values)
    return host


def test_what_was_sent_is_there_once_a_stream_waited(copier: Copier):
    source = host_values(copier, 1, 2, 3)
    sent = copier.send(source, to=copier.device)
    copier.fence().before_use()
    assert sent.device == copier.device
    assert (sent + 1).tolist() == [2, 3, 4]


def test_goes_into_a_tensor_that_is_there_and_back_and_the_source_may_be_written_after_the_wait(copier: Copier):
    source, target = host_values(copier, 0, 0, 0), torch.zeros(3, dtype=torch.int64, device=copier.device)
    back = copier.host_memory(24).view(torch.int64)
    for value in range(5):
        source[:] = value
        assert copier.send(source, to=target) is target
        there = copier.fence()
        there.before_use()
        assert copier.send(target, to=back) is back
        for fence in (there, copier.fence()):
            fence.wait()
            fence.wait()
        assert target.tolist() == back.tolist() == [value] * 3


def test_nothing_is_copied_on_the_cpu_that_is_there_already():
    copier = make_copier("cpu")
    assert isinstance(copier, ImmediateCopier)
    host = copier.host_memory(8)
    assert copier.send(host, to=copier.device).data_ptr() == host.data_ptr()


class TestTheDelayedCopierFinds:
    """Every rule of the seam, broken once."""

    def sent(self) -> tuple[DelayedCopier, torch.Tensor, torch.Tensor]:
        copier = DelayedCopier()
        source = host_values(copier, 7)
        return copier, source, copier.send(source, to=copier.device)

    def test_a_target_that_is_read_before_its_fence(self):
        copier, _source, sent = self.sent()
        fence = copier.fence()
        assert sent.view(torch.uint8).tolist() == [POISON] * 8
        fence.before_use()
        assert sent.tolist() == [7]

    def test_a_host_target_that_is_read_after_a_streams_wait_only(self):
        copier = DelayedCopier()
        back = copier.send(torch.ones(1), to=copier.host_memory(4).view(torch.float32))
        fence = copier.fence()
        fence.before_use()
        assert back.isnan().all()
        fence.wait()
        assert back.tolist() == [1.0]

    def test_a_source_that_is_refilled_too_early(self):
        copier, source, sent = self.sent()
        fence = copier.fence()
        source[:] = 8
        fence.before_use()
        assert sent.tolist() == [8], "nobody had waited"
        source[:] = 9
        with pytest.raises(AssertionError, match="written before the fence"):
            fence.wait()

    def test_a_source_that_is_sent_again_too_early(self):
        copier, source, _sent = self.sent()
        copier.fence().before_use()
        with pytest.raises(AssertionError, match="sent again"):
            copier.send(source, to=copier.device)

    def test_a_source_that_is_freed(self):
        copier, source, sent = self.sent()
        del source
        copier.fence().before_use()
        assert sent.view(torch.uint8).tolist() == [POISON] * 8

    def test_pageable_memory(self):
        copier = DelayedCopier()
        with pytest.raises(AssertionError, match="pageable"):
            copier.send(torch.ones(3), to=copier.device)


@pytest.mark.gpu
class TestOnAGpu:
    """Tests that need a GPU."""

    def test_refuses_pageable_memory(self):
        with pytest.raises(InvalidInputError, match="12 bytes of cpu memory that is not pinned; expected"):
            make_copier("cuda").send(torch.ones(3), to=torch.device("cuda"))

    def test_neither_send_nor_stream_waits_for_the_device(self):
        copier = make_copier("cuda")
        assert isinstance(copier, CudaCopier)
        host = host_values(copier, *range(1000))
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(50_000_000)
            sent = copier.send(host, to=copier.device)
            copier.fence().before_use()
            doubled = sent * 2
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert doubled.tolist() == list(range(0, 2000, 2))

    def test_a_copy_runs_while_other_streams_work(self):
        copier = make_copier("cuda")
        source, busy = host_values(copier, 7), torch.cuda.Event()
        torch.cuda._sleep(2_000_000_000)
        busy.record()
        copier.send(source, to=copier.device)
        copier.fence().wait()
        assert not busy.query()
        busy.synchronize()

    def test_what_the_streams_work_makes_is_copied_after_it(self):
        copier = make_copier("cuda")
        made = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(100_000_000)
        made += 3
        back = copier.send(made, to=copier.host_memory(4 << 20).view(torch.float32))
        fence = copier.fence()
        fence.before_use()
        made.zero_()
        fence.wait()
        assert back.unique().tolist() == [3.0]

    def test_memory_of_a_copy_is_not_given_away_while_another_stream_uses_it(self):
        copier = make_copier("cuda")
        results, sources = [], []
        for value in range(20):
            sources.append(copier.host_memory(1 << 20).fill_(value))
            sent = copier.send(sources[-1], to=copier.device)
            copier.fence().before_use()
            torch.cuda._sleep(5_000_000)
            results.append(sent.amax())
            del sent  # the next copy would get its memory
        assert [int(result) for result in results] == list(range(20))

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_a_fence_marks_copies_of_a_device_that_is_not_the_current_one(self):
        copier = make_copier("cuda:1")
        host = copier.host_memory(256 << 20)
        for value in range(4):
            host.fill_(value)
            sent = copier.send(host, to=copier.device)
            copier.fence().wait()
            host.fill_(100)
            assert sent.unique().tolist() == [value]
        with pytest.raises(InvalidInputError, match="cuda:1 was given a tensor on cuda:0"):
            copier.send(torch.ones(1, device="cuda:0"), to=host)


def test_all_copiers_and_graphs_of_a_device_share_three_streams(monkeypatch: pytest.MonkeyPatch):
    cuda = StandInCuda(monkeypatch)
    threads = [threading.Thread(target=make_copier, args=(cuda.device,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(20):
        CudaGraph(cuda.device, [])
    assert len(cuda.streams) == 3
    streams = streams_of(cuda.device)
    assert {streams.free_copies, streams.ordered_copies, streams.capture} == set(cuda.streams)
    make_copier(torch.device("cuda", 127))
    assert len(cuda.streams) == 6


LAYOUT = [((3,), np.uint8), ((2, 2), np.float32), ((0, 7), np.int64), ((), np.bool_), ((5,), np.uint16)]


def fill(arrays: list[np.ndarray], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = [rng.integers(0, 2, array.shape).astype(array.dtype) for array in arrays]
    for array, value in zip(arrays, values, strict=True):
        array[...] = value
    return values


@pytest.mark.parametrize("make", [lambda: make_copier("cpu"), DelayedCopier], ids=["immediate", "delayed"])
def test_arrays_of_all_kinds_travel_in_one_copy(make):
    copier = make()
    staging = Staging(copier)
    for seed in range(4):
        values = fill(staging.open(LAYOUT), seed)
        (tensors,), fence = send_together(copier, staging)
        fence.before_use()
        for tensor, value in zip(tensors, values, strict=True):
            assert tensor.dtype == torch.from_numpy(value).dtype
            np.testing.assert_array_equal(tensor.numpy(), value)
            assert tensor.data_ptr() % 64 == 0 or not tensor.numel()
    if isinstance(copier, DelayedCopier):
        assert copier.n_sent == 4
        assert copier.n_waits == 3


def test_arrays_grow_while_a_copy_of_the_smaller_ones_is_under_way():
    copier = DelayedCopier()
    staging = Staging(copier)
    kept = []
    for n in (1, 5, 100, 3):
        values = fill(staging.open([((n,), np.int64)]), n)
        ((tensor,),), fence = send_together(copier, staging)
        kept.append((tensor, fence, values[0]))
    for tensor, fence, value in kept:
        fence.before_use()
        assert tensor.tolist() == value.tolist()
