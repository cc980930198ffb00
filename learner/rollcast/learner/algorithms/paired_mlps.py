"""A policy and its critic as two MLPs side by side, differentiated by hand. Autograd takes half of a small update."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self

import torch
from gymnasium import Space
from torch import Tensor, nn

from rollcast.actor.policies.mlp_function import NARROW, activation_, activation_gradient_
from rollcast.actor.policies.network_arithmetic import hidden_dtype
from rollcast.actor.policies.networks import AutoNetwork
from rollcast.actor.policies.torch_distributions import DIFFERENTIATED
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.algorithms.critics import ValueCritic
from rollcast.learner.algorithms.descent import FlatParameters

# With more rows, the hidden layers of both networks no longer fit into a core's cache together, and one network after
# the other is as fast: at [2688, 64] 24 ms an update of IMPALA either way, at [1024, 64] 0.7 of the time of PPO's.
_MOST_ROWS: Final = 2048


class Forward(NamedTuple):
    """The outputs of both networks for M observations and the actions at the first N of them.

    Attributes:
        log_prob: float32 `[N]`, of the actions.
        entropy: float32 `[N]`, in nats.
        values: float32 `[M]`.
        write_gradient: Writes the gradient of a loss into the gradient of the `FlatParameters`. The arguments are the
            gradients of the loss with respect to the log-probability, the entropy and the first N values, each float32
            `[N]`. None: the tensors have autograd graphs.
    """

    log_prob: Tensor
    entropy: Tensor
    values: Tensor
    write_gradient: Callable[[Tensor, Tensor, Tensor], None] | None = None


class PairedMlps:
    """The built-in MLPs of a policy and of its critic, as one product for each pair of layers.

    The results equal those of autograd up to rounding. Only the algorithm's thread uses it.

    Args:
        policy: The policy.
        critic: Its critic.
        parameters: The parameters of both, policy first.
        action_space: A space of `DIFFERENTIATED`.
        substep_key: The substep to learn.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        critic: ValueCritic,
        parameters: FlatParameters,
        *,
        action_space: Space[Any],
        substep_key: str,
    ) -> None:
        self._policy, self._substep_key, self._action_space = policy, substep_key, action_space
        self._differentiated: Final = DIFFERENTIATED[type(action_space)]
        self._activation = policy.spec.activation
        network, critic_network = policy.networks[substep_key], critic.network
        assert isinstance(network, AutoNetwork)
        assert isinstance(critic_network, AutoNetwork)
        self._network = network
        *hidden, last = network.linear_layers
        *critic_hidden, critic_last = critic_network.linear_layers
        # The weights and biases of hidden layers, and their gradients: views [2, ...] of the vector.
        self._weights, self._weight_gradients, self._biases, self._bias_gradients = [], [], [], []
        for layer, critic_layer in zip(hidden, critic_hidden, strict=True):
            weight, weight_gradient = parameters.side_by_side(layer.weight, critic_layer.weight)
            bias, bias_gradient = parameters.side_by_side(layer.bias, critic_layer.bias)
            self._weights.append(weight.transpose(1, 2))
            self._weight_gradients.append(weight_gradient)
            self._biases.append(bias.unsqueeze(1))
            self._bias_gradients.append(bias_gradient)
        self._last = [parameter.detach() for parameter in (last.weight, last.bias)]
        self._last_gradients = [parameters.gradient_of(parameter) for parameter in (last.weight, last.bias)]
        self._critic_last = [parameter.detach().view(-1) for parameter in (critic_last.weight, critic_last.bias)]
        self._critic_last_gradients = [
            parameters.gradient_of(parameter).view(-1) for parameter in (critic_last.weight, critic_last.bias)
        ]
        log_std = policy.log_std.get(substep_key)
        self._log_std_gradient = None if log_std is None else parameters.gradient_of(log_std)

    @classmethod
    def of(
        cls,
        policy: TorchPolicy,
        critic: nn.Module,
        parameters: FlatParameters,
        *,
        action_space: Space[Any],
        substep_key: str,
    ) -> Self | None:
        """Pairs the networks of an actor-critic; None: one of them is no built-in MLP."""
        network = policy.networks[substep_key]
        fits = (
            type(critic) is ValueCritic
            and type(network) is type(critic.network) is AutoNetwork
            and not network.learns_features
            and len(network.layers) > 1
            and type(action_space) in DIFFERENTIATED
        )
        if not fits:
            return None
        assert isinstance(critic, ValueCritic)
        return cls(policy, critic, parameters, action_space=action_space, substep_key=substep_key)

    def suits(self, observation: Mapping[str, Tensor]) -> bool:
        """Returns whether to run the networks here: they compute in float32 now, and M is small enough."""
        return hidden_dtype() == torch.float32 and len(next(iter(observation.values()))) <= _MOST_ROWS

    @torch.no_grad()
    def evaluate(self, observation: Mapping[str, Tensor], action: Tensor) -> Forward:
        """Runs both networks.

        Args:
            observation: `[M, ...]` for every leaf, in the form that networks see.
            action: `[N, ...]`, in the action space's dtype, for the first N observations.
        """
        x = self._network.features(observation)
        n = len(action)
        # The inputs of each hidden layer and of the last layers, [2, M, ...].
        inputs = [x.expand(2, *x.shape)]
        for weight, bias in zip(self._weights, self._biases, strict=True):
            inputs.append(activation_(torch.baddbmm(bias, inputs[-1], weight), self._activation))
        of_policy, of_critic = inputs[-1]
        weight, bias = self._last
        outputs = torch.addmm(bias, of_policy[:n], weight.t())
        critic_weight, critic_bias = self._critic_last
        values = torch.addmv(critic_bias, of_critic, critic_weight)
        seen = {path: leaf[:n] for path, leaf in observation.items()}
        allowed = self._policy.allowed_actions(seen, self._substep_key)
        parameters = self._policy.parameters_from(outputs, allowed, self._substep_key)
        of_actions = self._differentiated(self._action_space, parameters, action)

        @torch.no_grad()
        def write_gradient(log_prob: Tensor, entropy: Tensor, value: Tensor) -> None:
            gradient = of_actions.gradient(log_prob, entropy)
            n_outputs = outputs.shape[1]
            if self._log_std_gradient is not None:
                torch.sum(gradient[:, n_outputs:], 0, out=self._log_std_gradient)
                gradient = gradient[:, :n_outputs]
            if allowed is not None:
                gradient = gradient * allowed
            self._write(inputs, gradient, value)

        return Forward(of_actions.log_prob, of_actions.entropy, values, write_gradient)

    def _write(self, inputs: list[Tensor], outputs: Tensor, values: Tensor) -> None:
        """Writes the gradient of both networks.

        Args:
            inputs: Of each layer, `[2, M, ...]`.
            outputs: The gradient with respect to the policy's outputs, `[N, n_outputs]`.
            values: The gradient with respect to the values, `[N]`.
        """
        n = len(values)
        of_policy, of_critic = inputs[-1][0, :n], inputs[-1][1, :n]
        weight_gradient, bias_gradient = self._last_gradients
        torch.mm(outputs.t(), of_policy, out=weight_gradient)
        torch.sum(outputs, 0, out=bias_gradient)
        critic_weight_gradient, critic_bias_gradient = self._critic_last_gradients
        torch.mv(of_critic.t(), values, out=critic_weight_gradient)
        torch.sum(values, 0, keepdim=True, out=critic_bias_gradient)
        # Zero in the rows after the first N. Products of slices without these rows are slower.
        gradient = torch.zeros_like(inputs[-1]) if n < inputs[-1].shape[1] else torch.empty_like(inputs[-1])
        torch.mm(outputs, self._last[0], out=gradient[0, :n])
        torch.outer(values, self._critic_last[0], out=gradient[1, :n])
        for layer in range(len(self._weights) - 1, -1, -1):
            activation_gradient_(gradient, inputs[layer + 1], self._activation)
            torch.sum(gradient, 1, out=self._bias_gradients[layer])
            x = inputs[layer]
            if x.shape[2] < NARROW:
                self._weight_gradients[layer].copy_(torch.bmm(x.transpose(1, 2), gradient).transpose(1, 2))
            else:
                torch.bmm(gradient.transpose(1, 2), x, out=self._weight_gradients[layer])
            if layer:
                gradient = torch.bmm(gradient, self._weights[layer].transpose(1, 2))
