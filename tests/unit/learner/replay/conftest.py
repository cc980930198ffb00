import pytest
import torch

from rollcast.learner.replay import batches, parts
from rollcast.learner.replay.columns.device_memory import DeviceMemory
from rollcast.learner.replay.columns.memory import ColumnMemory, MainMemory
from tests.delayed_copier import DelayedCopier


@pytest.fixture(params=["cpu", "delayed", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A learner's device; the CPU's tensors pass through the same code, with copies that are made late, too."""
    return _device(request, request.param)


@pytest.fixture(params=["numpy", "torch-delayed", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> str | None:
    """The place of a buffer's columns: None in main memory, else on this learner's device."""
    return _device(request, request.param.removeprefix("torch-")) if request.param != "numpy" else None


@pytest.fixture
def memory(place: str | None) -> ColumnMemory:
    """A memory for the columns of one store."""
    return MainMemory() if place is None else DeviceMemory(parts.make_copier(place))


def _device(request: pytest.FixtureRequest, name: str) -> str:
    if name != "delayed":
        return name
    copiers: list[DelayedCopier] = []

    def make_delayed_copier(device: torch.device | str) -> DelayedCopier:
        assert torch.device(device).type == "cpu"
        copiers.append(DelayedCopier())
        return copiers[-1]

    for module in (parts, batches):
        request.getfixturevalue("monkeypatch").setattr(module, "make_copier", make_delayed_copier)
    request.addfinalizer(lambda: [copier.check() for copier in copiers])
    return "cpu"
