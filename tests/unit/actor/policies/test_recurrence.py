"""The memory of a policy, in numpy and in torch, beside torch's own modules and a loop over single steps."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollcast.actor.policies.recurrence import NumpyRecurrence
from rollcast.actor.policies.torch_recurrence import SequenceStarts, TorchRecurrence
from rollcast.services.policies.policies import PolicySpec

N_INPUTS, SIZE = 5, 7
KINDS = ("lstm", "gru")


def spec_of(kind: str) -> PolicySpec:
    return PolicySpec(recurrence=kind, recurrent_size=SIZE)


def made(kind: str) -> TorchRecurrence:
    torch.manual_seed(3)
    recurrence = TorchRecurrence(spec_of(kind), N_INPUTS)
    with torch.no_grad():
        for parameter in recurrence.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return recurrence


def module_of(kind: str, recurrence: TorchRecurrence) -> nn.LSTM | nn.GRU:
    """Returns torch's own module with the same parameters, whose names are the same."""
    module = (nn.LSTM if kind == "lstm" else nn.GRU)(N_INPUTS, SIZE)
    module.load_state_dict(recurrence.state_dict())
    return module


def as_torch_has_it(kind: str, state: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    return (state[None, :, :SIZE], state[None, :, SIZE:]) if kind == "lstm" else state[None]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_numpy_and_of_torch_equal_those_of_torchs_module(kind: str):
    recurrence = made(kind)
    module = module_of(kind, recurrence)
    acting = NumpyRecurrence(spec_of(kind), N_INPUTS)
    acting.load({name: array.numpy() for name, array in recurrence.state_dict().items()})
    x = torch.randn(9, 4, N_INPUTS)
    first = torch.randn(4, spec_of(kind).state_size)
    state, state_of_torch, state_of_numpy = as_torch_has_it(kind, first), first, first.numpy().copy()
    with torch.no_grad():
        for x_t in x:
            output, state = module(x_t[None], state)
            state_of_torch = recurrence(x_t, state_of_torch)
            output_of_numpy = acting.step(x_t.numpy(), state_of_numpy)
            torch.testing.assert_close(recurrence.output_of(state_of_torch), output[0], atol=1e-6, rtol=1e-5)
            np.testing.assert_allclose(output_of_numpy, output[0], atol=1e-6, rtol=1e-5)
            np.testing.assert_allclose(state_of_numpy, state_of_torch, atol=1e-6, rtol=1e-5)


def brute(recurrence: TorchRecurrence, x: Tensor, initial: Tensor, starts: SequenceStarts) -> Tensor:
    """Steps one by one, and sets the state of each trajectory in a loop."""
    states, state = [], initial
    for t in range(len(x)):
        rows = []
        for b in range(x.shape[1]):
            if starts.held[t, b]:
                rows.append(initial[b])
            else:
                rows.append(torch.zeros_like(initial[b]) if starts.begins[t, b] else state[b])
        state = recurrence(x[t], torch.stack(rows))
        states.append(state)
    return torch.stack(states)


def some_starts(n_steps: int, n: int) -> SequenceStarts:
    held = torch.zeros(n_steps, n, dtype=torch.bool)
    held[0], held[1:3, 1] = True, True
    begins = (torch.rand(n_steps, n) < 0.3) & ~held
    return SequenceStarts(begins, held)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_steps", [1, 8])
def test_unrolling_equals_single_steps_with_its_gradients(kind: str, n_steps: int):
    recurrence = made(kind)
    x = torch.randn(n_steps, 4, N_INPUTS, requires_grad=True)
    initial = torch.randn(4, spec_of(kind).state_size)
    starts = some_starts(max(n_steps, 3), 4)
    starts = SequenceStarts(starts.begins[:n_steps], starts.held[:n_steps])
    weight = torch.randn(n_steps, 4, spec_of(kind).state_size)
    results = []
    for states in (recurrence.unroll(x, initial, starts), brute(recurrence, x, initial, starts)):
        results.append((states, *torch.autograd.grad((states * weight).sum(), [x, *recurrence.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
