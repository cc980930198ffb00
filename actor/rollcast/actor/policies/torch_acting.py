"""Acts with any network, in torch: for images, users' own networks, and simulators on a device."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.distributions import Parameters
from rollcast.actor.policies.torch_distributions import log_prob
from rollcast.actor.policies.torch_sampling import sample
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, Observation


class TorchActingPolicy(Policy):
    """A policy that acts with a `TorchPolicy`.

    `act` samples in numpy, which is faster than torch on a CPU. `act_on_device` samples on the device.

    Attributes:
        device: The device on which the network computes.
    """

    def __init__(
        self, spaces: EnvironmentSpaces, spec: PolicySpec, *, seed: int, device: str = "cpu", slot: int = 0
    ) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture.
            seed: Seeds the sampling of actions.
            device: The device on which the network computes.
            slot: The actor's slot, at least 0; selects the actor's exploration rate.

        Raises:
            ConfigurationError: If no network fits the spaces.
            InvalidSpaceError: If a space is not supported at all or with this head.
        """
        super().__init__(
            spaces, seed=seed, head=spec.head, slot=slot, state_size=spec.state_size, frame_stack=spec.frame_stack
        )
        self.device = torch.device(device)
        self._policy = TorchPolicy(spaces, spec).to(self.device).eval()

    def event_sources(self) -> Sequence[FiresEvents]:
        """Returns the parts of the policy that fire events: the policy itself, and modules of its network."""
        modules = (module for module in self._policy.modules() if isinstance(module, FiresEvents))
        return (*super().event_sources(), *modules)

    def seed(self, seed: int) -> None:
        """Seeds the sampling of actions, in numpy and on the device."""
        super().seed(seed)
        self._seed = seed
        self._generator: torch.Generator | None = None

    def act_on_device(
        self, observation: Mapping[str, Tensor], *, deterministic: bool = False, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Chooses an action for each observation, without waiting for the device. Needs the default head.

        Args:
            observation: `[B, ...]` on the device, for every leaf of the observation space.
            deterministic: Take the greedy actions.
            state: float32 `[B, S]` on the device, of a recurrent policy; changed in place.

        Returns:
            Actions `[B, ...]` in the space's dtype, and their log-probabilities, float32 `[B]`; both on the device.

        Raises:
            NotReadyError: If no weights have been loaded.
        """
        self.check_loaded()
        space = self.spaces[FLAT_SUBSTEP].action
        if self._generator is None:
            self._generator = torch.Generator(self.device).manual_seed(self._seed)
        with torch.no_grad():
            if state is None:
                parameters = self._policy.parameters_of(observation)
            else:
                parameters, after = self._policy.step(observation, state)
                state.copy_(after)
            action = sample(space, parameters, None if deterministic else self._generator)
            return action, log_prob(space, parameters, action)

    def parameters_of(self, observation: Observation, substep_key: str, state: RecurrentState | None) -> Parameters:
        """See `Policy.parameters_of`."""
        with torch.inference_mode():
            tensors = {path: self._tensor(array) for path, array in observation.items()}
            if state is None:
                computed = self._policy.parameters_of(tensors, substep_key)
            else:
                computed, after = self._policy.step(tensors, self._tensor(state), substep_key)
                state[...] = after.cpu().numpy()
            parameters: Parameters = computed.cpu().numpy()
        return parameters

    def _load(self, state: PolicyState) -> None:
        self._policy.load_weights(state)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        # torch warns of read-only arrays, and those that came over the wire are read-only.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)
