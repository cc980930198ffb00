"""The recurrent layer of a policy, in torch: an LSTM or a GRU of one layer, unrolled across the ends of episodes.

The whole unrolling is one node of the autograd graph. `recurrence` is the version in numpy.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rollcast.actor.policies.recurrence import recurrent_shapes
from rollcast.services.policies.policies import PolicySpec


class SequenceStarts(NamedTuple):
    """The rows of trajectories `[T, B]` whose recurrent state does not follow from the previous row.

    Attributes:
        begins: bool `[T, B]`. True: the row begins an episode, so the state is 0.
        held: bool `[T, B]`. True: no earlier row is a transition, so the state is the initial state. True at t = 0.
    """

    begins: Tensor
    held: Tensor


class TorchRecurrence(nn.Module):
    """An LSTM or a GRU of one layer, with the parameters of torch.nn.LSTM or torch.nn.GRU."""

    weight_ih_l0: nn.Parameter
    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: nn.Parameter

    def __init__(self, spec: PolicySpec, n_inputs: int) -> None:
        """Makes the parameters: orthogonal weights, biases of 0.

        Args:
            spec: A recurrence and its size H.
            n_inputs: F, the number of inputs.
        """
        super().__init__()
        self._is_lstm = spec.recurrence == "lstm"
        self._size = spec.recurrent_size
        for name, shape in recurrent_shapes(spec, n_inputs).items():
            values = torch.zeros(shape)
            self.register_parameter(name, nn.Parameter(nn.init.orthogonal_(values) if values.ndim > 1 else values))

    def output_of(self, state: Tensor) -> Tensor:
        """Returns the output `[..., H]` that a state `[..., S]` holds."""
        return state[..., : self._size]

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Computes a step.

        Args:
            x: float32 `[N, F]`.
            state: float32 `[N, S]`.

        Returns:
            The next state, float32 `[N, S]`.
        """
        weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        if not self._is_lstm:
            return torch.gru_cell(x, state, *weights)
        return torch.cat(torch.lstm_cell(x, (state[:, : self._size], state[:, self._size :]), *weights), dim=1)

    def unroll(self, x: Tensor, initial_state: Tensor, starts: SequenceStarts) -> Tensor:
        """Computes T steps of B trajectories.

        Args:
            x: float32 `[T, B, F]`.
            initial_state: float32 `[B, S]`, without a gradient.
            starts: The rows whose state is 0 or `initial_state`.

        Returns:
            float32 `[T, B, S]`: the states after each row.
        """
        weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        unrolled = _UnrolledLstm if self._is_lstm else _UnrolledGru
        # torch gives `apply` no types.
        states: Tensor = unrolled.apply(x, initial_state, *starts, *weights)  # type: ignore[no-untyped-call]
        return states


class _Starts:
    """The rows that start from 0 or the initial state, prepared for iteration over t."""

    def __init__(self, initial: Tensor, begins: Tensor, held: Tensor) -> None:
        self._initial, self._begins, self._held = initial, begins[..., None], held[..., None]
        breaks = begins | held
        self._breaks = breaks[..., None]
        # On a GPU, reading `breaks` would wait for the device.
        self._is_broken = breaks.any(dim=1).tolist() if breaks.device.type == "cpu" else [True] * len(breaks)

    def before(self, t: int, state: Tensor) -> Tensor:
        """Returns the state before row t: `state` where row t follows from the previous row."""
        if not self._is_broken[t]:
            return state
        return torch.where(self._held[t], self._initial, state.masked_fill(self._begins[t], 0.0))

    def before_all(self, states: Tensor) -> Tensor:
        """Returns the states before all rows, `[T, B, S]`, from the states after all rows."""
        shifted = torch.cat([self._initial[None], states[:-1]])
        return torch.where(self._held, self._initial, shifted.masked_fill_(self._begins, 0.0))

    def cut(self, t: int, gradient: Tensor) -> Tensor:
        """Returns the gradient that flows back across the start of row t."""
        return gradient.masked_fill_(self._breaks[t], 0.0) if self._is_broken[t] else gradient


class _UnrolledLstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's
        x: Tensor,
        initial: Tensor,
        begins: Tensor,
        held: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> Tensor:
        (n_steps, n, n_inputs), size = x.shape, weight_hh.shape[1]
        # tanh(x) = 2 sigmoid(2 x) - 1: one sigmoid for all gates
        scale = torch.ones(4 * size, device=x.device)
        scale[2 * size : 3 * size] = 2.0
        of_input, of_state = (weight_ih * scale[:, None]).t(), (weight_hh * scale[:, None]).t()
        gates = torch.addmm((bias_ih + bias_hh) * scale, x.reshape(-1, n_inputs), of_input).view(n_steps, n, 4 * size)
        states, tanh_cells = x.new_empty(n_steps, n, 2 * size), x.new_empty(n_steps, n, size)
        i_all, f_all, g_all, o_all = gates.chunk(4, dim=2)
        starts, state = _Starts(initial, begins, held), initial
        rows = zip(gates, i_all, f_all, g_all, o_all, states, tanh_cells, strict=True)
        for t, (gate, i, f, g, o, after, tanh_cell) in enumerate(rows):
            state = starts.before(t, state)
            gate.addmm_(state[:, :size], of_state).sigmoid_()
            g.mul_(2.0).sub_(1.0)
            cell = after[:, size:]
            torch.mul(f, state[:, size:], out=cell).addcmul_(i, g)
            torch.mul(o, torch.tanh(cell, out=tanh_cell), out=after[:, :size])
            state = after
        ctx.save_for_backward(x, gates, states, tanh_cells, weight_ih, weight_hh)
        ctx.starts = starts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        x, gates, states, tanh_cells, weight_ih, weight_hh = ctx.saved_tensors
        (n_steps, n, _), size, starts = x.shape, weight_hh.shape[1], ctx.starts
        before = starts.before_all(states)
        i, f, g, o = gates.chunk(4, dim=2)
        # Factors that turn the gradients of cell and output into those of the gates, before the gates' functions.
        of_cell = torch.stack([g * i * (1 - i), before[..., size:] * f * (1 - f), i * (1 - g * g)], dim=2)
        of_output = tanh_cells * o * (1 - o)
        cell_of_output = o * (1 - tanh_cells * tanh_cells)
        gates_gradient = x.new_empty(n_steps, n, 4, size)
        output_gradient, cell_gradient = x.new_zeros(n, size), x.new_zeros(n, size)
        for t in range(n_steps - 1, -1, -1):
            output_gradient += gradient[t, :, :size]
            cell_gradient += gradient[t, :, size:]
            cell_gradient.addcmul_(output_gradient, cell_of_output[t])
            of_gates = gates_gradient[t]
            torch.mul(cell_gradient[:, None], of_cell[t], out=of_gates[:, :3])
            torch.mul(output_gradient, of_output[t], out=of_gates[:, 3])
            cell_gradient = starts.cut(t, cell_gradient.mul_(f[t]))
            output_gradient = starts.cut(t, of_gates.view(n, -1).mm(weight_hh))
        of_gates = gates_gradient.view(n_steps * n, -1)
        bias_gradient = of_gates.sum(0)
        return (
            of_gates.mm(weight_ih).view_as(x) if ctx.needs_input_grad[0] else None,
            *(None, None, None),
            of_gates.t().mm(x.reshape(n_steps * n, -1)),
            of_gates.t().mm(before[..., :size].reshape(n_steps * n, -1)),
            bias_gradient,
            bias_gradient,
        )


class _UnrolledGru(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's
        x: Tensor,
        initial: Tensor,
        begins: Tensor,
        held: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> Tensor:
        (n_steps, n, n_inputs), size = x.shape, weight_hh.shape[1]
        gates = torch.addmm(bias_ih, x.reshape(-1, n_inputs), weight_ih.t()).view(n_steps, n, 3 * size)
        states, of_state = x.new_empty(n_steps, n, size), x.new_empty(n_steps, n, 3 * size)
        starts, state = _Starts(initial, begins, held), initial
        for t, (gate, product, after) in enumerate(zip(gates, of_state, states, strict=True)):
            state = starts.before(t, state)
            torch.addmm(bias_hh, state, weight_hh.t(), out=product)
            reset_and_update, new = gate[:, : 2 * size], gate[:, 2 * size :]
            reset_and_update.add_(product[:, : 2 * size]).sigmoid_()
            new.addcmul_(reset_and_update[:, :size], product[:, 2 * size :]).tanh_()
            torch.lerp(new, state, reset_and_update[:, size:], out=after)
            state = after
        ctx.save_for_backward(x, gates, states, of_state[..., 2 * size :], weight_ih, weight_hh)
        ctx.starts = starts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        x, gates, states, new_of_state, weight_ih, weight_hh = ctx.saved_tensors
        (n_steps, n, _), size, starts = x.shape, weight_hh.shape[1], ctx.starts
        before = starts.before_all(states)
        r, z, new = gates.chunk(3, dim=2)
        # Factors that turn the state's gradient into that of the update and the new gate, and the new gate's into the
        # reset gate's.
        of_new = (1 - z) * (1 - new * new)
        of_update = (before - new) * z * (1 - z)
        of_reset = new_of_state * r * (1 - r)
        gates_gradient = x.new_empty(n_steps, n, 3, size)
        products_gradient = x.new_empty(n_steps, n, 3, size)
        state_gradient = x.new_zeros(n, size)
        for t in range(n_steps - 1, -1, -1):
            state_gradient += gradient[t]
            of_gates, of_products = gates_gradient[t], products_gradient[t]
            new_gradient = torch.mul(state_gradient, of_new[t], out=of_gates[:, 2])
            torch.mul(new_gradient, of_reset[t], out=of_gates[:, 0])
            torch.mul(state_gradient, of_update[t], out=of_gates[:, 1])
            of_products[:, :2] = of_gates[:, :2]
            torch.mul(new_gradient, r[t], out=of_products[:, 2])
            state_gradient = torch.addmm(state_gradient.mul_(z[t]), of_products.view(n, -1), weight_hh)
            state_gradient = starts.cut(t, state_gradient)
        of_gates = gates_gradient.view(n_steps * n, -1)
        of_products = products_gradient.view(n_steps * n, -1)
        return (
            of_gates.mm(weight_ih).view_as(x) if ctx.needs_input_grad[0] else None,
            *(None, None, None),
            of_gates.t().mm(x.reshape(n_steps * n, -1)),
            of_products.t().mm(before.reshape(n_steps * n, -1)),
            of_gates.sum(0),
            of_products.sum(0),
        )
