"""The policy as a learner trains it: an nn.Module that gives the parameters of distributions."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from actor.policies.distributions import action_distribution
from actor.policies.networks import build_network
from actor.policies.policy import check_policy_state
from services.policies import PolicySpec, PolicyState
from services.spaces import FLAT_SUBSTEP, EnvironmentSpaces


class TorchPolicy(nn.Module):
    """One network a substep; for Box actions also a log standard deviation that no observation changes.

    Its parameters are `networks.<substep>.<name in the network>` and, for Box actions, `log_std.<substep>`, `[D]`,
    starting at 0.
    """

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec) -> None:
        """Builds the networks; torch's global generator initialises them.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture.

        Raises:
            ConfigurationError: If no network fits the observation space.
            InvalidSpaceError: If a space is of a kind that is not supported.
        """
        super().__init__()
        self.spaces = spaces
        self.spec = spec
        self.networks = nn.ModuleDict()
        self.log_std = nn.ParameterDict()
        for key, substep in spaces.items():
            distribution = action_distribution(substep.action)
            self.networks[key] = build_network(substep.observation, distribution.n_outputs, spec)
            if distribution.n_outputs != distribution.n_parameters:
                self.log_std[key] = nn.Parameter(torch.zeros(distribution.n_parameters - distribution.n_outputs))

    def parameters_of(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Tensor:
        """The distributions over actions that follow observations.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.
            substep_key: Whose policy.

        Returns:
            float32 `[N, P]`, laid out as `distributions` says.
        """
        outputs: Tensor = self.networks[substep_key](observation)
        if substep_key not in self.log_std:
            return outputs
        return torch.cat([outputs, self.log_std[substep_key].expand(len(outputs), -1)], dim=1)

    def forward(self, observation: Mapping[str, Tensor], substep_key: str = FLAT_SUBSTEP) -> Tensor:
        """The same as `parameters_of`."""
        return self.parameters_of(observation, substep_key)

    def state_arrays(self) -> PolicyState:
        """Copies its parameters and buffers to the CPU.

        Returns:
            Arrays by the names of the `state_dict`; training on does not change them.
        """
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}

    def load_state_arrays(self, state: PolicyState) -> None:
        """Takes parameters and buffers over.

        Args:
            state: Arrays by the names of the `state_dict`.

        Raises:
            ProtocolMismatchError: If names, shapes or dtypes differ from its own.
        """
        own = self.state_dict()
        expected = {name: (tuple(tensor.shape), np.dtype(str(tensor.dtype)[6:])) for name, tensor in own.items()}
        check_policy_state(expected, state)
        with torch.no_grad():
            for name, tensor in own.items():
                # A copy: arrays that came over the wire are read-only, of which torch warns.
                tensor.copy_(torch.from_numpy(np.array(state[name])))
