import itertools

import pytest
import torch
from torch import nn

from rollcast.learner.algorithms.critics import ensemble_mlp

N = 7


@pytest.mark.parametrize("n_members", [1, 2, 5])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("sizes", [(3, 8, 6, 2), (3, 1)])
def test_equals_its_members_one_after_the_other(n_members, activation, has_norms, sizes):
    rng = torch.Generator().manual_seed(0)
    linear = [[nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes)] for _ in range(n_members)]
    norms = [[nn.LayerNorm(size) for size in sizes[1:-1]] for _ in range(n_members)]
    for norm in (norm for of_member in norms for norm in of_member):
        for parameter in norm.parameters():
            nn.init.normal_(parameter, generator=rng)
    x = torch.randn(n_members, N, sizes[0], generator=rng, requires_grad=True)

    def alone(index: int) -> torch.Tensor:
        y = x[index]
        for i, layer in enumerate(linear[index]):
            y = layer(y)
            if i < len(linear[index]) - 1:
                y = norms[index][i](y) if has_norms else y
                y = torch.tanh(y) if activation == "tanh" else torch.relu(y)
        return y

    def tensors(layers):
        return [tensor for layer in layers for tensor in (layer.weight, layer.bias)]

    values = ensemble_mlp(
        x,
        [tensors(layers) for layers in linear],
        activation,
        [tensors(layers) for layers in norms] if has_norms else None,
    )
    expected = torch.stack([alone(index) for index in range(n_members)])
    torch.testing.assert_close(values, expected)
    sources = [x, *(tensor for layers in linear for tensor in tensors(layers))]
    sources += [tensor for layers in norms if has_norms for tensor in tensors(layers)]
    for gradient, wanted in zip(
        torch.autograd.grad(values.square().sum(), sources),
        torch.autograd.grad(expected.square().sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_layer_norm_is_that_of_the_paper_by_hand():
    weight, nothing = torch.tensor([[1.0], [3.0]]), torch.zeros(2)
    last = torch.eye(2)
    gain, shift = torch.tensor([2.0, 10.0]), torch.tensor([0.5, -1.0])
    values = ensemble_mlp(torch.ones(1, 1, 1), [[weight, nothing, last, nothing]], "relu", [[gain, shift]])
    # (1, 3) has mean 2 and deviation 1; scaled and shifted (-1.5, 9), and relu.
    torch.testing.assert_close(values, torch.tensor([[[0.0, 9.0]]]), rtol=1e-4, atol=1e-4)
