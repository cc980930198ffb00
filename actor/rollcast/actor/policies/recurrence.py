"""The recurrent layer of a policy, in numpy: an LSTM or a GRU of one layer, like torch.nn.LSTM and torch.nn.GRU.

`torch_recurrence` has the differentiable version.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollcast.services.policies.policies import PolicySpec

# Gates in the order of torch's rows: input, forget, cell, output; reset, update, new.
_N_GATES: Final = {"lstm": 4, "gru": 3}


def recurrent_shapes(spec: PolicySpec, n_inputs: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a recurrence's arrays, by the arrays' names in torch.

    Args:
        spec: A recurrence and its size H.
        n_inputs: F, the number of inputs.
    """
    n_rows = _N_GATES[spec.recurrence] * spec.recurrent_size
    return {
        "weight_ih_l0": (n_rows, n_inputs),
        "weight_hh_l0": (n_rows, spec.recurrent_size),
        "bias_ih_l0": (n_rows,),
        "bias_hh_l0": (n_rows,),
    }


class NumpyRecurrence:
    """One step of an LSTM or a GRU for many trajectories, with the weights and buffers. Not thread-safe.

    The equations are those of torch.nn.LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000)
    and torch.nn.GRU (Cho et al. 2014, with the reset gate after the product).
    """

    def __init__(self, spec: PolicySpec, n_inputs: int) -> None:
        """Prepares the buffers.

        Args:
            spec: A recurrence and its size H.
            n_inputs: F, the number of inputs.
        """
        self._is_lstm = spec.recurrence == "lstm"
        self._size = spec.recurrent_size
        self._n_inputs = n_inputs
        self._allocate(0)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copies the arrays, float32 with the names and shapes of `recurrent_shapes`."""
        size, n_inputs = self._size, self._n_inputs
        of_input, of_state = arrays["weight_ih_l0"], arrays["weight_hh_l0"]
        bias_of_input, bias_of_state = arrays["bias_ih_l0"], arrays["bias_hh_l0"]
        if self._is_lstm:
            # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2: one tanh for all gates, whose halves are taken here
            scale = np.full((4 * size, 1), 0.5, np.float32)
            scale[2 * size : 3 * size] = 1.0
            self._weight = np.ascontiguousarray((np.concatenate([of_input, of_state], axis=1) * scale).T)
            self._bias = (bias_of_input + bias_of_state) * scale[:, 0]
            return
        # The new gate's products with the state and the input are separate: the reset gate scales only the first.
        weight = np.zeros((n_inputs + size, 4 * size), np.float32)
        weight[:n_inputs, : 3 * size] = of_input.T
        weight[n_inputs:, : 2 * size] = of_state[: 2 * size].T
        weight[n_inputs:, 3 * size :] = of_state[2 * size :].T
        bias = np.concatenate([bias_of_input, bias_of_state[2 * size :]])
        bias[: 2 * size] += bias_of_state[: 2 * size]
        weight[:, : 2 * size] *= 0.5
        bias[: 2 * size] *= 0.5
        self._weight, self._bias = weight, bias

    def step(self, x: NDArray[np.float32], state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Computes a step.

        Args:
            x: float32 `[N, F]`.
            state: float32 `[N, S]`, changed in place.

        Returns:
            The output, float32 `[N, H]`, a view of the state.
        """
        if len(x) != len(self._gates):
            self._allocate(len(x))
        size, gates, joint = self._size, self._gates, self._joint
        output = state[:, :size]
        joint[:, : self._n_inputs] = x
        joint[:, self._n_inputs :] = output
        np.dot(joint, self._weight, out=gates)
        np.add(gates, self._bias, out=gates)
        if self._is_lstm:
            np.tanh(gates, out=gates)
            candidate = gates[:, 2 * size : 3 * size]
            for gate in (gates[:, : 2 * size], gates[:, 3 * size :]):
                np.multiply(gate, 0.5, out=gate)
                np.add(gate, 0.5, out=gate)
            cell = state[:, size:]
            np.multiply(cell, gates[:, size : 2 * size], out=cell)
            np.multiply(candidate, gates[:, :size], out=candidate)
            np.add(cell, candidate, out=cell)
            np.tanh(cell, out=output)
            np.multiply(output, gates[:, 3 * size :], out=output)
            return output
        reset_and_update = gates[:, : 2 * size]
        np.tanh(reset_and_update, out=reset_and_update)
        np.multiply(reset_and_update, 0.5, out=reset_and_update)
        np.add(reset_and_update, 0.5, out=reset_and_update)
        new = gates[:, 3 * size :]
        np.multiply(new, gates[:, :size], out=new)
        np.add(new, gates[:, 2 * size : 3 * size], out=new)
        np.tanh(new, out=new)
        np.subtract(output, new, out=output)
        np.multiply(output, gates[:, size : 2 * size], out=output)
        np.add(output, new, out=output)
        return output

    def _allocate(self, n: int) -> None:
        self._gates = np.empty((n, 4 * self._size), np.float32)
        self._joint = np.empty((n, self._n_inputs + self._size), np.float32)
