import pytest
import torch
from torch import nn

from rollcast.learner.algorithms.descent import FlatParameters
from rollcast.learner.algorithms.target_networks import TargetNetwork


@pytest.fixture
def source() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))


def test_target_follows_by_tau(source):
    parameters = FlatParameters({"source": source})
    target = TargetNetwork(source, parameters)
    x = torch.randn(4, 3)
    torch.testing.assert_close(target.module.eval()(x), source.eval()(x))
    before = [parameter.clone() for parameter in target.module.parameters()]
    with torch.no_grad():
        parameters.vector.add_(1.0)
    target.follow(0.25)
    for old, new in zip(before, target.module.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)
    target.follow(1.0)
    assert all(torch.equal(a, b) for a, b in zip(target.module.parameters(), source.parameters(), strict=True))


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
