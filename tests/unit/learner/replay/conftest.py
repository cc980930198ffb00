import pytest
import torch

from rollcast.learner.replay.columns.device_memory import DeviceMemory
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory

_NEEDS_CUDA = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_NEEDS_CUDA)])
def device(request: pytest.FixtureRequest) -> str:
    """A learner's device; the CPU's tensors pass through the same code."""
    return request.param


@pytest.fixture(params=["numpy", "torch-cpu", pytest.param("torch-cuda", marks=_NEEDS_CUDA)])
def place(request: pytest.FixtureRequest) -> str | None:
    """The place of a buffer's columns: None in main memory, else on this learner's device."""
    return request.param.removeprefix("torch-") if request.param != "numpy" else None


@pytest.fixture
def memory(place: str | None) -> ColumnMemory:
    """A memory for the columns of one store."""
    return MainMemory() if place is None else DeviceMemory(torch.device(place))
