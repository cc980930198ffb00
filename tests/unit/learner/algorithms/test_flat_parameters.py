import pytest
import torch
from torch import nn

from rollcast.learner.algorithms.descent import FlatParameters
from rollcast.services.errors import ConfigurationError


@pytest.fixture
def modules() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"policy": nn.Linear(3, 2), "critic": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))}


def test_the_parameters_are_views_of_the_vector(modules):
    before = [parameter.detach().clone() for module in modules.values() for parameter in module.parameters()]
    flat = FlatParameters(modules)
    after = [parameter for module in modules.values() for parameter in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    with torch.no_grad():
        flat.vector.zero_()
    assert not any(parameter.any() for parameter in after)
    modules["policy"].load_state_dict({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    assert flat.vector.sum() == 8.0


def test_gradient_equals_autograd(modules):
    x = torch.randn(5, 3)
    flat = FlatParameters(modules)
    outputs = [module(x) for module in modules.values()]
    gradient = flat.backward(outputs, [torch.ones_like(output) for output in outputs]).clone()
    sum(module(x).sum() for module in modules.values()).backward()
    expected = [parameter.grad.reshape(-1) for module in modules.values() for parameter in module.parameters()]
    torch.testing.assert_close(flat.packed(gradient), torch.cat(expected))
    assert flat.vector.grad.shape == flat.vector.shape


def test_the_gradient_of_a_loss_needs_no_output_gradients(modules):
    x = torch.randn(5, 3)
    flat = FlatParameters(modules)
    outputs = [module(x) for module in modules.values()]
    expected = flat.backward(outputs, [torch.ones_like(output) for output in outputs]).clone()
    loss = sum(module(x).sum() for module in modules.values())
    torch.testing.assert_close(flat.backward([loss]), expected)


def test_unused_parameter_gets_zero_gradient(modules):
    flat = FlatParameters(modules)
    gradient = flat.packed(flat.backward([modules["critic"](torch.ones(1, 3))], [torch.ones(1, 1)]))
    assert not gradient[:8].any()
    assert gradient[8:].any()


def test_clipping_one_module_does_not_change_the_other(modules):
    flat = FlatParameters(modules)
    flat.vector.grad.copy_(flat.unpacked(torch.full((29,), 2.0)))
    norm = flat.clip_gradient("policy", 1.0)
    assert norm.item() == pytest.approx(2.0 * 8**0.5)
    assert flat.packed(flat.vector.grad)[:8].norm().item() == pytest.approx(1.0, rel=1e-5)
    assert (flat.packed(flat.vector.grad)[8:] == 2.0).all()
    flat.clip_gradient("critic", float("inf"))
    assert (flat.packed(flat.vector.grad)[8:] == 2.0).all()


def test_frozen_parameters_are_not_in_the_vector(modules):
    modules["policy"].bias.requires_grad_(False)
    flat = FlatParameters(modules)
    assert flat.packed(flat.vector).numel() == 6 + 21


def test_each_parameter_begins_at_64_bytes(modules):
    FlatParameters(modules)
    assert all(parameter.data_ptr() % 64 == 0 for module in modules.values() for parameter in module.parameters())


def test_the_zeros_between_parameters_stay_zeros(modules):
    flat = FlatParameters(modules)
    optimizer = torch.optim.Adam([flat.vector], lr=0.1)
    for _ in range(3):
        flat.backward([module(torch.ones(2, 3)).sum() for module in modules.values()])
        optimizer.step()
    state = optimizer.state[flat.vector]
    for vector in (flat.vector.detach(), flat.vector.grad, state["exp_avg"], state["exp_avg_sq"]):
        assert vector.numel() > 29
        assert torch.equal(flat.unpacked(flat.packed(vector)), vector)


def test_refuses_a_vector_of_other_networks(modules):
    flat = FlatParameters(modules)
    with pytest.raises(ConfigurationError, match=r"29 parameters has the shape \[30\]; expected \[29\]"):
        flat.unpacked(torch.zeros(30))


def test_rejects_networks_that_cannot_be_trained():
    with pytest.raises(ConfigurationError, match="weight of the policy is"):
        FlatParameters({"policy": nn.Linear(1, 1).double()})
    with pytest.raises(ConfigurationError, match="no trainable parameter"):
        FlatParameters({"policy": nn.Tanh()})
