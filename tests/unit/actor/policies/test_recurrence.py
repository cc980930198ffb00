"""The memory of a policy, in numpy and in torch, beside torch's own modules and a loop over single steps."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollcast.actor.policies.recurrence import NumpyRecurrence, recurrent_shapes
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
def test_shapes_are_those_of_torch(kind: str):
    expected = {name: tuple(array.shape) for name, array in made(kind).state_dict().items()}
    assert recurrent_shapes(spec_of(kind), N_INPUTS) == expected
    assert module_of(kind, made(kind)).state_dict().keys() == expected.keys()


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


def test_golden_numbers_of_one_lstm_step():
    acting = NumpyRecurrence(PolicySpec(recurrence="lstm", recurrent_size=1), 1)
    weights = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)  # input, forget, cell, output
    zeros = np.zeros(4, np.float32)
    acting.load({"weight_ih_l0": weights, "weight_hh_l0": weights / 10, "bias_ih_l0": zeros, "bias_hh_l0": zeros})
    state = np.array([[0.5, -1.0]], np.float32)
    acting.step(np.array([[0.2]], np.float32), state)
    # gates' inputs: 0.25, 0.5, 0.75, 1.0; cell = s(0.5) * -1 + s(0.25) * tanh(0.75); output = s(1) * tanh(cell)
    cell = -0.62245933 + 0.56217653 * 0.63514895
    np.testing.assert_allclose(state, [[0.73105858 * np.tanh(cell), cell]], rtol=1e-6)


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


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind: str):
    recurrence = made(kind).double()
    initial = torch.randn(3, spec_of(kind).state_size, dtype=torch.float64)
    starts = some_starts(4, 3)

    def unrolled(x: Tensor, *parameters: Tensor) -> Tensor:
        names = [name for name, _ in recurrence.named_parameters()]
        return torch.func.functional_call(
            Unrolling(recurrence, initial, starts),
            {f"recurrence.{name}": parameter for name, parameter in zip(names, parameters, strict=True)},
            (x,),
        )

    x = torch.randn(4, 3, N_INPUTS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unrolled, (x, *recurrence.parameters()))


class Unrolling(nn.Module):
    def __init__(self, recurrence: TorchRecurrence, initial: Tensor, starts: SequenceStarts) -> None:
        super().__init__()
        self.recurrence, self.initial, self.starts = recurrence, initial, starts

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrence.unroll(x, self.initial, self.starts)
