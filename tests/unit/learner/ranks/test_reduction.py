"""Two ranks with batches of B make the same updates as one learner with a batch of 2 B: on real gloo processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from rollcast.learner.ranks.reduction import RankReduction
from tests.accelerator import Accelerator
from tests.processes import environment, free_port
from tests.rank_updates import CASES, W, learn, learn_alone
from tests.unit.learner.ranks.boards import BoardInMemory

pytestmark = pytest.mark.slow

# What a rank reports of its own share only.
OF_ONE_RANK = ("explained_variance", "mean_rho", "mean_value", "mean_td_error", "stale_kl")


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results of both ranks, of all algorithms."""
    folder = tmp_path_factory.mktemp("ranks")
    place = {"WORLD_SIZE": str(W), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rank_updates", str(folder)],
            env=environment() | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(W)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=110)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_make_the_same_updates_as_one_learner_with_both_batches(name, of_ranks):
    case = CASES[name]
    torch.set_num_threads(1)
    expected = learn_alone(case)
    before = learn(case.make(), iter(()))
    moved = 0.0
    results = [load_file(of_ranks / f"{name}-{rank}.safetensors") for rank in range(W)]
    assert set(results[0]) == set(expected)
    for key, value in expected.items():
        for rank, result in enumerate(results):
            if not key.endswith(OF_ONE_RANK):
                np.testing.assert_allclose(result[key], value, rtol=1e-5, atol=1e-6, err_msg=f"{key} of rank {rank}")
            if not key.startswith("metrics/"):
                np.testing.assert_array_equal(result[key], results[0][key], f"{key} of rank {rank}")
        if key in before:
            moved = max(moved, float(np.abs(value - before[key]).max()))
    assert moved > 1e-4, "an update that moves nothing compares nothing"


@pytest.mark.parametrize("on_device", [True, False], ids=["count on the device", "count of the host"])
def test_ranks_reduce_on_a_device_without_a_wait(on_device: bool):
    reduction = RankReduction(BoardInMemory(0, 1, {}))  # its sum over one rank leaves values as they are
    values, weight = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.25, 0.25])
    with Accelerator() as accelerator:
        gradient, term = (torch.full((n,), 3.0).to(accelerator.device) for n in (3, 1))
        count = torch.tensor(5.0).to(accelerator.device) if on_device else 5.0
        moved = [values.to(accelerator.device), weight.to(accelerator.device)]
        with accelerator.counting() as cost:
            terms = reduction.average(gradient, [term[0]], count)
            moments = reduction.mean_and_variance(*moved, count)
        assert cost.waits == cost.copies == []
        assert (gradient.tolist(), [float(term) for term in terms]) == ([3.0, 3.0, 3.0], [3.0])
        assert [float(moment) for moment in moments] == [2.0, 1.5]
