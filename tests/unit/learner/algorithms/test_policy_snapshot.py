"""Tests of the copies of a policy that training hands over."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.descent import FlatParameters
from rollcast.learner.algorithms.policy_snapshot import MergedStates, PolicySnapshot
from rollcast.learner.devices.copier import make_copier
from rollcast.services.errors import RollcastError
from rollcast.services.policies.policies import PolicySpec
from tests.delayed_copier import DelayedCopier
from tests.rollouts import CARTPOLE_LIKE


class Mixed(nn.Module):
    """Has what a policy may have: layers in one vector or not, tied weights, numbers of several kinds, views."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.tied = self.first
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("mean", torch.randn(4, dtype=torch.float64))
        self.register_buffer("turned", torch.randn(4, 6).t())
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("nothing", torch.zeros(0, 3))


def arrays(module):
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


def assert_equal(snapshot, expected):
    assert list(snapshot) == list(expected)
    assert len(snapshot) == len(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(snapshot[name], array, strict=True)


@pytest.mark.parametrize("is_flat", [False, True], ids=["apart", "in one vector"])
@pytest.mark.parametrize("copier", [make_copier("cpu"), DelayedCopier()], ids=["at once", "late"])
def test_snapshot_has_the_arrays_of_its_time(copier, is_flat):
    module = Mixed()
    others = nn.Linear(4, 4)
    if is_flat:
        del module.tied
        FlatParameters({"other": others, "policy": module})
    expected = arrays(module)
    snapshot = PolicySnapshot(module, copier)
    with torch.no_grad():
        for tensor in (*module.state_dict().values(), *others.state_dict().values()):
            tensor.zero_()
    assert_equal(snapshot, expected)
    assert "first.weight" in snapshot
    assert "third.weight" not in snapshot
    with pytest.raises(KeyError):
        snapshot["third.weight"]


def test_parameters_in_one_vector_are_copied_in_one_piece():
    policy = TorchPolicy(CARTPOLE_LIKE, PolicySpec(hidden_sizes=(64, 64)))
    FlatParameters({"critic": nn.Linear(9, 9), "policy": policy})
    copier = DelayedCopier()
    snapshot = PolicySnapshot(policy, copier)
    assert copier.n_sent == 1
    assert copier.n_waits == 0, "whoever makes it does not wait"
    assert copier.n_stream_waits == 0, "nor does the update that comes next"
    assert_equal(snapshot, arrays(policy))
    assert copier.n_waits == 1


def test_many_readers_at_once_see_the_whole_snapshot():
    module = Mixed()
    expected = arrays(module)
    snapshot = PolicySnapshot(module, DelayedCopier())
    together = threading.Barrier(8)

    def read(_):
        together.wait(10.0)
        assert_equal(snapshot, expected)

    with ThreadPoolExecutor(8) as readers:
        list(readers.map(read, range(8)))


def test_snapshot_of_diverged_training_cannot_be_read():
    record = torch.zeros(2)

    def check(copied):
        if copied.isnan().any():
            raise RollcastError("training diverged")

    good = PolicySnapshot(Mixed(), DelayedCopier(), watched=record, check=check)
    record.fill_(float("nan"))
    bad = PolicySnapshot(Mixed(), DelayedCopier(), watched=record, check=check)
    assert good["count"] == 7, "it is of the time before"
    for _ in range(2):
        with pytest.raises(RollcastError, match="training diverged"):
            bad["count"]


def test_merged_states_read_nothing_before_they_must_and_later_ones_win():
    copier = DelayedCopier()
    first, second = nn.Linear(2, 2), nn.ModuleDict({"x": nn.Linear(2, 2)})
    states = [PolicySnapshot(first, copier), {"bias": np.ones(2)}, PolicySnapshot(second, copier)]
    merged = MergedStates(states, ["x.bias", "bias", "weight"])
    assert (list(merged), len(merged), copier.n_waits) == (["x.bias", "bias", "weight"], 3, 0)
    assert_equal(merged, {"x.bias": arrays(second)["x.bias"], "bias": np.ones(2), "weight": arrays(first)["weight"]})
    with pytest.raises(KeyError):
        merged["gone"]
