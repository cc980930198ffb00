import numpy as np
import pytest
import torch

from rollcast.learner.devices.copier import make_copier
from rollcast.learner.devices.staging import Staging, send_together
from tests.delayed_copier import DelayedCopier

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
