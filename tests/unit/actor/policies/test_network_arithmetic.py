import copy
import threading

import pytest
import torch
from torch import nn

from rollcast.actor.policies.network_arithmetic import (
    NetworkArithmetic,
    follow_arithmetic,
    hidden_dtype,
    networks_compute,
    scaled_pixels,
)

BF16 = NetworkArithmetic(hidden=torch.bfloat16)
IMAGES = torch.randint(0, 256, (3, 4, 40, 42), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_arithmetic_holds_inside_the_block_only():
    with networks_compute(BF16):
        assert hidden_dtype() == torch.bfloat16
        with networks_compute(NetworkArithmetic()):
            assert hidden_dtype() == torch.float32
        assert hidden_dtype() == torch.bfloat16
    assert hidden_dtype() == torch.float32


def test_arithmetic_ends_with_an_error_in_the_block():
    with pytest.raises(ZeroDivisionError), networks_compute(BF16):
        raise ZeroDivisionError
    assert hidden_dtype() == torch.float32


def test_other_threads_compute_as_before():
    found = []
    with networks_compute(BF16):
        thread = threading.Thread(target=lambda: found.append(hidden_dtype()))
        thread.start()
        thread.join()
    assert found == [torch.float32]


@pytest.mark.parametrize("channels_last", [True, False, None])
@pytest.mark.parametrize("with_gradients", [True, False])
def test_pixels_are_scaled_to_the_same_bits_in_the_order_asked_for(channels_last, with_gradients):
    with networks_compute(NetworkArithmetic(channels_last=channels_last)), torch.set_grad_enabled(with_gradients):
        pixels = scaled_pixels(IMAGES)
    assert torch.equal(pixels, IMAGES.to(torch.float32) * (1.0 / 255.0))
    expects_last = with_gradients if channels_last is None else channels_last
    assert pixels.is_contiguous(memory_format=torch.channels_last) is expects_last


def test_pixels_are_in_the_format_of_hidden_layers():
    with networks_compute(BF16):
        pixels = scaled_pixels(IMAGES)
    assert torch.equal(pixels, (IMAGES.to(torch.float32) * (1.0 / 255.0)).to(torch.bfloat16))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.layer(x)
        self.seen.append(output.dtype)
        if len(x) == 1:
            raise ZeroDivisionError
        return output


def test_own_network_computes_in_the_format_and_returns_float32():
    network = follow_arithmetic(Own())
    with networks_compute(BF16):
        assert network(torch.ones(3, 4)).dtype == torch.float32
    network(torch.ones(3, 4))
    assert network.seen == [torch.bfloat16, torch.float32]


def test_copy_of_an_own_network_follows_the_arithmetic_too():
    network = copy.deepcopy(follow_arithmetic(Own()))
    with networks_compute(BF16):
        network(torch.ones(3, 4))
    assert network.seen == [torch.bfloat16]
    assert set(network.state_dict()) == {"layer.weight", "layer.bias"}


def test_error_of_an_own_network_leaves_no_autocast_behind():
    network = follow_arithmetic(Own())
    with networks_compute(BF16), pytest.raises(ZeroDivisionError):
        network(torch.ones(1, 4))
    assert not torch.is_autocast_enabled("cpu")
