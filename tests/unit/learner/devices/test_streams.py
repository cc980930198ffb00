"""The streams of a GPU, as torch makes them of a pool of 32: on a stand-in for torch.cuda."""

import threading

import pytest
import torch

from rollcast.learner.devices.copier import make_copier
from rollcast.learner.devices.graphs import CudaGraph
from rollcast.learner.devices.streams import streams_of
from tests.stand_in_cuda import StandInCuda


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
