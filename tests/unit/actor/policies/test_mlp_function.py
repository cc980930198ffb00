import itertools

import pytest
import torch
from torch import Tensor, nn

from rollcast.actor.policies.mlp_function import mlp


def plain(x: Tensor, parameters: list[Tensor], activation: str) -> Tensor:
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    for weight, bias in layers[:-1]:
        x = getattr(torch, activation)(nn.functional.linear(x, weight, bias))
    return nn.functional.linear(x, *layers[-1])


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", [(4, 2), (4, 16, 16, 2), (20, 8, 3)])
@pytest.mark.parametrize("n", [1, 33])
def test_values_and_gradients_equal_those_of_plain_layers(activation, sizes, n):
    torch.manual_seed(0)
    parameters = [
        parameter for n_in, n_out in itertools.pairwise(sizes) for parameter in nn.Linear(n_in, n_out).parameters()
    ]
    x = torch.randn(n, sizes[0], requires_grad=True)
    outputs = mlp(x, parameters, activation), plain(x, parameters, activation)
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-5)
    weights = torch.randn(n, sizes[-1])
    gradients = [torch.autograd.grad(output, [x, *parameters], weights) for output in outputs]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_tanh_stays_within_its_bounds():
    x = torch.tensor([[-1e4], [-20.0], [0.0], [20.0], [1e4]])
    one, zero = torch.ones(1, 1), torch.zeros(1)
    assert mlp(x, [one, zero, one, zero], "tanh").flatten().tolist() == [-1.0, -1.0, 0.0, 1.0, 1.0]


def test_frozen_layers_get_no_gradient_and_pass_theirs_on():
    torch.manual_seed(0)
    parameters = [p for n_in, n_out in ((4, 8), (8, 2)) for p in nn.Linear(n_in, n_out).parameters()]
    for parameter in parameters[2:]:
        parameter.requires_grad_(False)
    x = torch.randn(5, 4, requires_grad=True)
    gradients = [torch.autograd.grad(f(x, parameters, "relu").sum(), [x, *parameters[:2]]) for f in (mlp, plain)]
    torch.testing.assert_close(*gradients)
    for parameter in parameters:
        parameter.requires_grad_(False)
    (one,), (two,) = (torch.autograd.grad(f(x, parameters, "relu").sum(), [x]) for f in (mlp, plain))
    torch.testing.assert_close(one, two)
