"""States of generators: they go on where they were saved, on the same kind of device."""

import numpy as np
import pytest
import torch

from rollcast.learner.devices.generators import (
    global_generators_state,
    restore_generator,
    restore_global_generators,
    seed_global_generators,
)

CPU = torch.device("cpu")


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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
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
