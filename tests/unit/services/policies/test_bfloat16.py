import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import torch as safetensors_torch

from rollcast.services.policies.bfloat16 import narrow_file, read_narrow_file, rounded_to_bfloat16

BITS = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, max_dims=2), elements=st.integers(0, 2**32 - 1))


@given(BITS)
def test_rounds_as_torch_does_but_keeps_finite_numbers_finite(bits):
    numbers = bits.view(np.float32)
    before = numbers.copy()
    rounded = rounded_to_bfloat16(numbers)
    assert numbers.tobytes() == before.tobytes(), "its argument is as it was"
    assert rounded.shape == numbers.shape
    assert not (rounded.view(np.uint32) & 0xFFFF).any()
    np.testing.assert_array_equal(np.isnan(rounded), np.isnan(numbers))
    np.testing.assert_array_equal(np.isinf(rounded), np.isinf(numbers))
    expected = torch.from_numpy(numbers.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    same = ~(np.isnan(numbers) | np.isinf(expected) & np.isfinite(numbers))
    np.testing.assert_array_equal(rounded[same], expected[same])
    np.testing.assert_array_equal(rounded_to_bfloat16(rounded), rounded, "once is enough")


def test_the_largest_number_is_rounded_towards_zero():
    largest = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max])
    np.testing.assert_array_equal(
        rounded_to_bfloat16(largest.astype(np.float32)).view(np.uint32), np.array([0x7F7F0000, 0xFF7F0000], np.uint32)
    )


def mixed():
    rng = np.random.default_rng(0)
    return {
        "rounded": rounded_to_bfloat16(rng.standard_normal((3, 5), np.float32)),
        "exact": rng.standard_normal(7, np.float32),
        "count": np.array(3),
        "mean": rng.standard_normal(2),
        "mask": np.array([True, False, True]),
        "nothing": np.zeros((0, 4), np.float32),
        "one": rounded_to_bfloat16(np.array(0.1, np.float32)),
        "uniform": np.array(1, np.uint8),
    }


def test_narrow_file_brings_the_same_numbers_in_fewer_bytes():
    file = safetensors.numpy.save(mixed())
    narrow = narrow_file(file)
    state = read_narrow_file(narrow)
    assert state.keys() == mixed().keys()
    for name, array in mixed().items():
        np.testing.assert_array_equal(state[name], array, strict=True)
    theirs = safetensors_torch.load(narrow)
    assert {name for name, tensor in theirs.items() if tensor.dtype == torch.bfloat16} == {"rounded", "nothing", "one"}
    np.testing.assert_array_equal(theirs["rounded"].float().numpy(), mixed()["rounded"])
    large = safetensors.numpy.save({"w": np.ones(100_000, np.float32)})
    assert len(narrow_file(large)) < 0.51 * len(large)


def test_what_is_no_safetensors_file_is_refused():
    with pytest.raises(safetensors.SafetensorError):
        read_narrow_file(b"\xff" * 40)
    with pytest.raises(KeyError):
        read_narrow_file(safetensors_torch.save({"w": torch.zeros(2, dtype=torch.float8_e4m3fn)}))
