"""Constants on a device: the right numbers, copied once, usable in training."""

import torch

from rollcast.actor.policies.torch_constants import constant
from tests.accelerator import Accelerator


def test_copies_a_constant_to_each_device_once():
    with Accelerator() as accelerator:
        constant((3, -1), accelerator.device)
        with accelerator.counting() as cost:
            again = constant((3, -1), accelerator.device)
        assert (cost.copies, cost.waits) == ([], [])
        assert (again.tolist(), again.dtype) == ([3, -1], torch.int64)
    assert constant((3, -1), torch.device("cpu")).tolist() == [3, -1]


def test_a_constant_that_an_acting_policy_has_made_serves_training():
    with torch.inference_mode():
        made = constant((7, 8, 9), torch.device("cpu"))
    weight = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((weight * made).sum(), weight)
    assert gradient.tolist() == [7.0, 8.0, 9.0]
