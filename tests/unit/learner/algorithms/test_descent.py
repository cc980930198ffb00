import pytest
import torch
from torch import nn

from rollcast.learner.algorithms.descent import Adam, FlatParameters, RMSprop
from rollcast.learner.algorithms.target_networks import TargetNetwork
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


def test_rejects_networks_that_cannot_be_trained():
    with pytest.raises(ConfigurationError, match="weight of the policy is"):
        FlatParameters({"policy": nn.Linear(1, 1).double()})
    with pytest.raises(ConfigurationError, match="no trainable parameter"):
        FlatParameters({"policy": nn.Tanh()})


KINDS = [
    pytest.param(Adam, torch.optim.Adam, {"lr": 0.1, "betas": (0.5, 0.9), "fused": True}, id="Adam"),
    pytest.param(RMSprop, torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9}, id="RMSprop"),
]


def steps(kind, options, n_steps, state=None):
    parameter = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 7))
    optimizer = kind([parameter], **options)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (parameter**3).sum().backward()
        optimizer.step()
    return parameter.detach(), optimizer.state_dict()


@pytest.mark.parametrize(("ours", "torchs", "options"), KINDS)
def test_steps_are_those_of_torch_to_the_bit(ours, torchs, options):
    (mine, state), (theirs, expected) = (steps(kind, options, 5) for kind in (ours, torchs))
    assert torch.equal(mine, theirs)
    assert state["param_groups"] == expected["param_groups"]
    # from each other's state
    again = [steps(kind, options, 2, state=taken)[0] for kind, taken in ((ours, expected), (torchs, state))]
    assert torch.equal(*again)


@pytest.fixture
def source() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


def test_buffers_are_copied(source):
    target = TargetNetwork(source, FlatParameters({"source": source}))
    source.train()(torch.randn(8, 3) + 5.0)
    assert not torch.equal(target.module[1].running_mean, source[1].running_mean)
    target.follow(0.01)
    assert torch.equal(target.module[1].running_mean, source[1].running_mean)
    source.train()(torch.randn(8, 3) - 5.0)
    assert not torch.equal(target.module[1].running_mean, source[1].running_mean)


def test_no_gradient_flows_into_target(source):
    target = TargetNetwork(source, FlatParameters({"source": source}))
    assert not any(parameter.requires_grad for parameter in target.module.parameters())
    assert all(parameter.requires_grad for parameter in source.parameters())
    assert not target.module(torch.randn(2, 3)).requires_grad


def test_loading_keeps_target_one_vector(source):
    parameters = FlatParameters({"source": source})
    target = TargetNetwork(source, parameters)
    target.module.load_state_dict({name: torch.zeros_like(t) for name, t in source.state_dict().items()})
    target.follow(0.5)
    for own, other in zip(target.module.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(own, 0.5 * other)


def test_frozen_parameters_do_not_move(source):
    source[0].bias.requires_grad_(False)
    target = TargetNetwork(source, FlatParameters({"source": source}))
    target.follow(0.5)
    assert torch.equal(target.module[0].bias, source[0].bias)
