"""Critics: what an observation is worth. They live with the learner and never travel."""

from collections.abc import Mapping

from torch import Tensor, nn

from actor.policies.networks import build_network
from services.policies import PolicySpec
from services.spaces import EnvironmentSpaces


class ValueCritic(nn.Module):
    """V(x): a network of the policy's architecture with one output, sharing none of the policy's parameters."""

    def __init__(self, spaces: EnvironmentSpaces, spec: PolicySpec, *, substep_key: str) -> None:
        """Builds the network.

        Args:
            spaces: The environment's spaces by substep key.
            spec: The architecture; the policy's.
            substep_key: Whose observations are valued.

        Raises:
            ConfigurationError: If no network fits the observation space.
        """
        super().__init__()
        # 1.0: the first values are then of the order of one reward, not of one return, and errors start small.
        self.network = build_network(spaces[substep_key].observation, 1, spec, output_gain=1.0)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Values observations.

        Args:
            observation: `[N, ...]` for every leaf of the observation space.

        Returns:
            float32 `[N]`.
        """
        values: Tensor = self.network(observation)
        return values.squeeze(-1)
