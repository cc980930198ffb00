"""Deterministic arithmetic: on within, as before afterwards, and refusals in words."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rollcast.learner.devices import determinism
from rollcast.learner.devices.determinism import deterministic_arithmetic
from rollcast.learner.devices.generators import (
    global_generators_state,
    restore_generator,
    restore_global_generators,
    seed_global_generators,
)
from rollcast.services.errors import ConfigurationError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def environment_is_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def modes() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    filling = torch.utils.deterministic.fill_uninitialized_memory
    return (torch.are_deterministic_algorithms_enabled(), cudnn.benchmark, cudnn.deterministic, filling)


def test_torch_is_deterministic_within_and_as_before_afterwards():
    before = modes()
    with deterministic_arithmetic(CPU):
        assert modes() == (True, False, True, False)
    assert modes() == before


def test_an_error_leaves_torch_as_it_was():
    before = modes()
    with pytest.raises(ZeroDivisionError), deterministic_arithmetic(CPU):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match=r"^another$"), deterministic_arithmetic(CPU):
        raise RuntimeError("another")
    assert modes() == before


def test_an_operation_that_is_not_deterministic_is_refused_in_words():
    with (
        pytest.raises(
            ConfigurationError, match=r"put_ does not have a deterministic implementation.*; expected .*; ch"
        ),
        deterministic_arithmetic(CPU),
    ):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_cublas_gets_the_workspace_that_it_needs():
    with deterministic_arithmetic(GPU):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_another_workspace_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(
        ConfigurationError, match=r"CUBLAS_WORKSPACE_CONFIG is ':0:0' with --determ.* expected :4096:8 or"
    ):
        deterministic_arithmetic(GPU).__enter__()
    with deterministic_arithmetic(CPU):  # where cuBLAS computes nothing
        pass


def test_cuda_that_started_without_it_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigurationError, match="CUDA has started in this process without CUBLAS_WORKSPACE_CONFIG"):
        deterministic_arithmetic(GPU).__enter__()


@pytest.mark.parametrize("depends", [True, False])
def test_sums_that_depend_on_addresses_are_told(depends: bool, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.setattr(determinism, "_sums_depend_on_addresses", lambda: depends)
    with deterministic_arithmetic(CPU):
        assert ("set MKL_CBWR=AUTO,STRICT before Python starts" in caplog.text) is depends


@pytest.mark.slow
def test_products_do_not_depend_on_addresses():
    # In a process of its own, because MKL reads its variable once. On processors where they never do, this says little.
    asks = (
        "import torch; from rollcast.actor.rounding import fix_rounding; fix_rounding();"
        "from rollcast.learner.devices.determinism import _sums_depend_on_addresses as depend; print(depend())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    done = subprocess.run(
        [sys.executable, "-c", asks], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False"]


@pytest.fixture(autouse=True)
def the_global_generator_is_as_before():
    with torch.random.fork_rng(devices=[]):
        yield


def test_the_global_generator_goes_on_where_it_was_saved():
    torch.rand(3)
    saved = global_generators_state(CPU)
    drawn = torch.rand(4)
    torch.rand(9)
    restore_global_generators(CPU, saved)
    assert torch.equal(torch.rand(4), drawn)


def test_states_of_other_devices_are_left_out():
    saved = {"cuda": global_generators_state(CPU)["cpu"]}
    before = torch.get_rng_state()
    restore_global_generators(CPU, saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_runs_seed_decides_what_is_drawn():
    drawn = []
    for seed in (1, 1, 2):
        seed_global_generators(CPU, seed)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_refuses_what_is_not_in_base64():
    with pytest.raises(ValueError, match="base64"):
        restore_global_generators(CPU, {"cpu": "no, not this!"})


@pytest.mark.gpu
def test_the_generators_of_a_gpu_go_on_and_seed_those_of_a_cpu():
    gpu = torch.device("cuda")
    seed_global_generators(gpu, 3)
    saved = global_generators_state(gpu)
    assert saved.keys() == {"cpu", "cuda"}
    drawn = torch.rand(4, device=gpu)
    torch.rand(9, device=gpu)
    restore_global_generators(gpu, saved)
    assert torch.equal(torch.rand(4, device=gpu), drawn)
    own = torch.Generator(device=gpu).manual_seed(3)
    restored = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    for generator in restored:
        restore_generator(generator, own.get_state().numpy())
    assert np.array_equal(restored[0].get_state(), restored[1].get_state())
