"""Defines `TorchPolicy`, the policy that a learner trains: a torch module that returns parameters of distributions."""

import math
from collections.abc import Callable, Mapping
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rollcast.actor.policies.action_masks import action_mask_of
from rollcast.actor.policies.exploration import (
    EPSILONS,
    UNIFORM,
    checked_epsilons,
    read_exploration,
    without_exploration,
)
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.actor.policies.heads import OFF_POLICY_HEADS, Q_HEADS, head_distribution
from rollcast.actor.policies.networks import AutoNetwork, RecurrentNetwork, build_network
from rollcast.actor.policies.observation_moments import check_moments, normalized_leaves
from rollcast.actor.policies.state_check import check_policy_state
from rollcast.actor.policies.torch_action_masks import allowed_actions, forbid
from rollcast.actor.policies.torch_observation_moments import ObservationMoments
from rollcast.actor.policies.torch_recurrence import SequenceStarts
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.bfloat16 import rounded_to_bfloat16
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces

# The parameters in a `state_dict`.
_WEIGHTS: Final = ("networks.", "log_std.")


class TorchPolicy(nn.Module):
    """A torch module with a network for each substep. Box actions with the default head add `log_std`, `[D]`.

    The parameters are `networks.<substep>.<name in the network>`, and `log_std.<substep>`, which starts at 0. The
    buffers `exploration.uniform` and, for heads of Q-values, `exploration.epsilons` hold the exploration of actors.
    With the default head, these buffers exist only after a call that sets them. With `normalize_observations`, the
    running mean and variance of observations are buffers, too: `normalization.<substep>.mean`, `.variance` and
    `.count`. All arrays are on the module's device, except the buffers of exploration: these stay on the CPU, because
    the networks do not use them.

    With a frame stack, observations are `[..., K, *shape]`; see `frame_stacks`. `observe` takes single frames.

    Attributes:
        rounds_weights: True: published weights (for actors, evaluators, `Act` and files) are rounded to bfloat16.
            Training continues with float32.
    """

    rounds_weights: bool = False

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec) -> None:
        """Builds the networks, and initialises them with torch's global generator.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture, and the meaning of the networks' outputs.

        Raises:
            ConfigurationError: If no network fits the observation space, or a substep's key cannot name a module.
            InvalidSpaceError: If a space is not supported at all or with this head.
        """
        super().__init__()
        self.spaces = spaces
        self.spec = spec
        self._masks = {key: action_mask_of(substep) for key, substep in spaces.items()}
        self.networks = nn.ModuleDict()
        self.log_std = nn.ParameterDict()
        for key, substep in spaces.items():
            if "." in key or hasattr(self.networks, key):
                raise ConfigurationError(
                    f"the substep key {key!r} cannot name a network of torch; expected a key without '.' that is not "
                    "an attribute of torch's modules, such as 'type' or 'train'; rename the substep"
                )
            distribution = head_distribution(substep, spec.head)
            self.networks[key] = build_network(
                stacked_space(substep.observation, spec.frame_stack), distribution.n_outputs, spec
            )
            if distribution.n_outputs != distribution.n_parameters:
                self.log_std[key] = nn.Parameter(torch.zeros(distribution.n_parameters - distribution.n_outputs))

        # Shared by the learners of several substeps, as the networks are.
        self.normalization = nn.ModuleDict()
        for key, substep in spaces.items():
            leaves = normalized_leaves(substep.observation) if spec.normalize_observations else {}
            if leaves:
                self.normalization[key] = ObservationMoments(leaves, clip=spec.observation_clip)

        self.exploration: nn.Module = _InMainMemory()
        if spec.head in OFF_POLICY_HEADS:
            self.set_uniform_exploration(False)
        if spec.head in Q_HEADS:
            self.set_epsilons([0.0])

    def set_std(self, std: float) -> None:
        """Sets the standard deviations of Box actions, in all dimensions. Has no effect on other heads and spaces.

        Args:
            std: The standard deviation, in the action's units, above 0.
        """
        with torch.no_grad():
            for log_std in self.log_std.values():
                log_std.fill_(math.log(std))

    def set_uniform_exploration(self, uniform: bool) -> None:
        """Sets whether actors act at random, to fill a replay buffer, from the next version on.

        Args:
            uniform: True: draw actions from the action space. The first call adds the buffer, for any head.
        """
        self._set_buffer("uniform", torch.tensor(int(uniform), dtype=torch.uint8))

    def set_epsilons(self, epsilons: ArrayLike) -> None:
        """Sets how often actors act at random, from the next version on.

        Args:
            epsilons: `[n]`, each in [0, 1]: the actor in slot i acts at random with the rate `epsilons[i % n]`.

        Raises:
            ConfigurationError: If the head does not return Q-values.
            ProtocolMismatchError: If `epsilons` is empty, or a rate is outside [0, 1].
        """
        if self.spec.head not in Q_HEADS:
            raise ConfigurationError(
                f"the policy's head is {self.spec.head!r}; only {list(Q_HEADS)} act epsilon-greedily; use one of these "
                "heads, or leave exploration to the distribution"
            )
        rates = checked_epsilons(np.array(epsilons, dtype=np.float32))
        self._set_buffer("epsilons", torch.from_numpy(rates))

    def features_of(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Tensor:
        """Computes the inputs of a built-in network's hidden layers. Images pass through a torso.

        Args:
            observation: `[N, ...]` for every leaf of the observation space, normalised.
            substep_key: The substep.

        Returns:
            float32 `[N, F]`, for `parameters_of`.
        """
        network = self.networks[substep_key]
        assert isinstance(network, AutoNetwork)
        return network.features(observation)

    def parameters_of(
        self,
        observation: Mapping[str, Tensor],
        substep_key: str = FLAT_SUBSTEP,
        *,
        is_normalized: bool = False,
        features: Tensor | None = None,
    ) -> Tensor:
        """Computes the parameters of the distributions over actions.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            substep_key: The substep.
            is_normalized: True: the observations are results of `normalized`, for example for all passes over a batch.
            features: float32 `[N, F]`, from `features_of`, with their graph; None: computed here.

        Returns:
            float32 `[N, P]`, in the layout of `distributions`. Parameters of forbidden actions are
            `action_masks.FORBIDDEN` and have no gradient.

        Raises:
            ConfigurationError: If the policy is recurrent; use `step` or `unroll`.
        """
        if self.spec.state_size:
            raise ConfigurationError(
                f"the policy has the recurrence {self.spec.recurrence!r}, so its parameters depend on earlier "
                "observations; expected a policy without recurrence; call step() or unroll(), which take the state"
            )
        if not is_normalized:
            observation = self.normalized(observation, substep_key)
        network = self.networks[substep_key]
        if features is None:
            outputs = network(observation)
        else:
            assert isinstance(network, AutoNetwork)
            outputs = network.outputs_of(features)
        return self.parameters_from(outputs, self.allowed_actions(observation, substep_key), substep_key)

    def step(
        self,
        observation: Mapping[str, Tensor],
        state: Tensor,
        substep_key: str = FLAT_SUBSTEP,
        *,
        is_normalized: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Computes one step of a recurrent policy: the parameters of the distributions over actions, and the states.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            state: float32 `[N, S]`.
            substep_key: The substep.
            is_normalized: As of `parameters_of`.

        Returns:
            The parameters, float32 `[N, P]`, as from `parameters_of`, and the next states, `[N, S]`.
        """
        if not is_normalized:
            observation = self.normalized(observation, substep_key)
        outputs, state = self.networks[substep_key](observation, state)
        return self.parameters_from(outputs, self.allowed_actions(observation, substep_key), substep_key), state

    def unroll(
        self,
        observation: Mapping[str, Tensor],
        initial_state: Tensor,
        starts: SequenceStarts,
        substep_key: str = FLAT_SUBSTEP,
        *,
        is_normalized: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Computes the parameters of a recurrent policy in T rows of B trajectories, across the ends of episodes.

        Args:
            observation: `[T * B, ...]` for every leaf of the observation space, row by row.
            initial_state: float32 `[B, S]`, the policy's states at the first transitions.
            starts: The rows whose state does not follow from the previous row, `[T, B]`.
            substep_key: The substep.
            is_normalized: As of `parameters_of`.

        Returns:
            The parameters, float32 `[T * B, P]`, as from `parameters_of`, and the states after each row, `[T, B, S]`.
        """
        network = self.networks[substep_key]
        assert isinstance(network, RecurrentNetwork)
        if not is_normalized:
            observation = self.normalized(observation, substep_key)
        outputs, states = network.unroll(observation, initial_state, starts)
        return self.parameters_from(outputs, self.allowed_actions(observation, substep_key), substep_key), states

    def parameters_from(self, outputs: Tensor, allowed: Tensor | None, substep_key: str = FLAT_SUBSTEP) -> Tensor:
        """Returns the parameters of the distributions, `[N, P]`, for a network's outputs and its `allowed_actions`."""
        outputs = forbid(outputs, allowed)
        if substep_key not in self.log_std:
            return outputs
        return torch.cat([outputs, self.log_std[substep_key].expand(len(outputs), -1)], dim=1)

    def normalized(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Mapping[str, Tensor]:
        """Normalises observations if the spec has `normalize_observations`. Pass the result to critics, too.

        Args:
            observation: `[..., *shape]` for every leaf of the observation space.
            substep_key: The substep.

        Returns:
            The same leaves. Normalised leaves are float32; see `observation_moments`.
        """
        moments = self._moments(substep_key)
        return observation if moments is None else moments.normalize(observation)

    def observe(
        self, observation: Mapping[str, Tensor], valid: Tensor, n_valid: int, substep_key: str = FLAT_SUBSTEP
    ) -> None:
        """Merges observations into the running mean and variance. Merge each observation once.

        Args:
            observation: `[..., *shape]` for every leaf of the observation space, on the policy's device.
            valid: bool `[...]`, True for the rows to add.
            n_valid: The number of these rows.
            substep_key: The substep.
        """
        if (moments := self._moments(substep_key)) is not None:
            moments.observe(observation, valid, n_valid)

    def allowed_actions(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Tensor | None:
        """Returns the actions that observations allow.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            substep_key: The substep.

        Returns:
            bool `[N, n]`, as from `ActionMask.allowed`; None if the substep has no action mask.
        """
        mask = self._masks[substep_key]
        return None if mask is None else allowed_actions(mask, observation)

    def forward(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Tensor:
        """Returns the result of `parameters_of`."""
        return self.parameters_of(observation, substep_key)

    def state_arrays(self) -> PolicyState:
        """Copies the module's parameters and buffers to the CPU.

        Returns:
            Published arrays by the names of the `state_dict`; see `published`. Later training does not change them.
        """
        state = self.state_dict()
        return {name: self.published(name, tensor.detach().cpu().numpy().copy()) for name, tensor in state.items()}

    def published(self, name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Returns the published form of an array of the `state_dict`: rounded if `rounds_weights`.

        Only parameters are rounded. The running mean and variance, and the exploration rates, stay exact.
        """
        if self.rounds_weights and array.dtype == np.float32 and name.startswith(_WEIGHTS):
            return rounded_to_bfloat16(array)
        return array

    def load_state_arrays(self, state: PolicyState) -> None:
        """Loads parameters and buffers, including the arrays of exploration.

        Args:
            state: Arrays by the names of the `state_dict`. With the default head, the arrays of exploration may be
                missing, which means no exploration.

        Raises:
            ProtocolMismatchError: If names, shapes or dtypes differ from those of the module.
            InvalidTensorError: If a number is NaN, or a weight infinite.
        """
        exploration = read_exploration(state, self.spec.head, slot=0)
        self.load_weights(without_exploration(state))
        if UNIFORM in state or UNIFORM in self.state_dict():
            self.set_uniform_exploration(exploration.uniform)
        if EPSILONS in state:
            self.set_epsilons(state[EPSILONS])

    def load_weights(self, state: PolicyState) -> None:
        """Loads parameters and buffers, and leaves exploration unchanged.

        Args:
            state: Arrays by the names of the `state_dict`, without those of exploration.

        Raises:
            ProtocolMismatchError: If names, shapes or dtypes differ from those of the module.
            InvalidTensorError: If a number is NaN, or a weight infinite.
        """
        own = {name: tensor for name, tensor in self.state_dict().items() if name not in (UNIFORM, EPSILONS)}
        expected = {name: (tuple(tensor.shape), np.dtype(str(tensor.dtype)[6:])) for name, tensor in own.items()}
        parameters = {name for name, _ in self.named_parameters()}
        check_policy_state(expected, state, buffers=expected.keys() - parameters)
        check_moments(state)
        with torch.no_grad():
            for name, tensor in own.items():
                # A copy, because torch warns of read-only arrays, as those that came over the wire are.
                tensor.copy_(torch.from_numpy(np.array(state[name])))

    def _moments(self, substep_key: str) -> ObservationMoments | None:
        moments = self.normalization[substep_key] if substep_key in self.normalization else None  # noqa: SIM401 - no dict
        assert moments is None or isinstance(moments, ObservationMoments)
        return moments

    def _set_buffer(self, name: str, value: Tensor) -> None:
        # In place if possible, so that holders of the state_dict see the change.
        buffer = getattr(self.exploration, name, None)
        if buffer is not None and buffer.shape == value.shape:
            buffer.copy_(value)
        else:
            self.exploration.register_buffer(name, value)


class _InMainMemory(nn.Module):
    """A module whose buffers stay in main memory. Its name is the prefix of their names."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        del fn, recurse  # of `to` and its like
        return self
