"""Every algorithm on a GPU: the CPU's numbers, no waits, checkpoints that go on elsewhere, the same bits each time.

`test_on_accelerator.py` has the same cases on a device that needs no GPU.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rollcast.learner.devices.determinism import deterministic_arithmetic
from tests.every_algorithm import CASES, same_state, without_noise
from tests.tolerances import tf32_as_it_was

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]
DEVICE = "cuda"
if torch.cuda.is_available():
    # `deterministic_arithmetic` wants it before CUDA starts, and other tests may have started CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# The maximum over 3 by 3 pixels of its stages has a gradient that adds in any order.
NOT_DETERMINISTIC = {"impala: residual network"}

every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def products_have_all_bits() -> Iterator[None]:
    with tf32_as_it_was(allowed=False):
        yield


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws noise and orders on the CPU, because kinds of devices draw different ones."""
    for draw in (torch.randn, torch.randperm):

        def on_cpu(size: object, *, generator: torch.Generator, device: object, draw=draw) -> Tensor:
            own = torch.Generator().manual_seed(generator.initial_seed())
            return draw(size, generator=own).to(device)

        monkeypatch.setattr(torch, draw.__name__, on_cpu)


@every_case
@pytest.mark.usefixtures("same_noise")
def test_an_update_gives_the_cpus_numbers(name: str):
    case, found, states = CASES[name], [], []
    for device in ("cpu", DEVICE):
        algorithm = case.make(device)
        metrics = case.update(algorithm, case.batches(device))
        # gradients' norms are among them
        found.append({key: float(value) for key, value in metrics.items()})
        states.append(algorithm.policy_state())
    # Each device adds in an order of its own: a sum of n products of float32 differs by some sqrt(n) * 2**-24 of the
    # sum of their sizes. The longest are of 3,136 products (the layer after the Nature CNN): 3e-6. Forwards and
    # backwards are up to twelve layers, each of which passes on what it gets: some 4e-5 of a gradient's largest
    # numbers, and ten times that where numbers of both signs cancel, as in losses. 2e-3 leaves five times as much.
    assert found[1] == pytest.approx(found[0], rel=2e-3, abs=1e-4)
    for key, expected in states[0].items():
        # Adam's first step is as long for a gradient of 1e-9 as for one of 1, so a few numbers may go the other way: by
        # two steps of the learning rate, some 1e-3: the mean allows it one in ten of them at most.
        difference = np.abs(states[1][key].astype(np.float64) - expected)
        assert difference.mean() < 1e-4, key


@every_case
def test_an_update_never_waits_for_the_gpu(name: str):
    case = CASES[name]
    algorithm, batches = case.make(DEVICE), case.batches(DEVICE)
    for progress in (0.1, 0.2):  # the first makes the optimisers' state, and lets cuBLAS and cuDNN start
        case.update(algorithm, batches, progress=progress)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics = case.update(algorithm, batches, progress=0.3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert any(isinstance(value, Tensor) and value.device.type == DEVICE for value in metrics.values())
    assert algorithm.priorities is None or algorithm.priorities.device.type == DEVICE


@every_case
@pytest.mark.parametrize("devices", [(DEVICE, "cpu"), ("cpu", DEVICE)], ids=["gpu to cpu", "cpu to gpu"])
def test_a_checkpoint_goes_on_upon_the_other_device(name: str, devices: tuple[str, str], tmp_path: Path):
    case, (first, second) = CASES[name], devices
    saved, restored = case.make(first), case.make(second, seed=9)
    for _ in range(2):
        case.update(saved, case.batches(first))
    saved.save(tmp_path)
    restored.load(tmp_path)
    assert same_state(without_noise(restored), without_noise(saved))
    case.update(restored, case.batches(second, seed=1))
    assert all(np.isfinite(array).all() for array in restored.policy_state().values())
    assert restored.n_updates == 3 * case.n_substeps


@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_DETERMINISTIC))
def test_deterministic_updates_have_the_same_bits_each_time(name: str):
    case, states = CASES[name], []
    with deterministic_arithmetic(torch.device(DEVICE)):
        for _ in range(2):
            algorithm = case.make(DEVICE)
            for seed in range(3):
                case.update(algorithm, case.batches(DEVICE, seed=seed))
            states.append(algorithm.policy_state())
    assert same_state(*states)


def test_making_an_algorithm_leaves_the_gpus_generator_alone():
    before = torch.cuda.get_rng_state()
    CASES["sac: box"].make(DEVICE, seed=5)
    assert torch.equal(torch.cuda.get_rng_state(), before)
