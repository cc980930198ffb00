"""Acts uniformly at random, to fill a replay buffer before there is a policy."""

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.base import Policy, RecurrentState
from rollcast.actor.policies.distributions import Action, Parameters
from rollcast.actor.policies.state_check import check_policy_state
from rollcast.services.policies.policies import PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, Observation


class RandomPolicy(Policy):
    """A policy that draws allowed actions from the action space, as gymnasium does; see `uniform_actions`.

    This policy has no weights. Its version is 0, and its parameters are 0, or `FORBIDDEN` for forbidden actions.
    Deterministic actions are samples, too. Other policies act in the same way during uniform exploration.
    """

    def act(
        self,
        observation: Observation,
        *,
        deterministic: bool = False,
        substep_key: str = FLAT_SUBSTEP,
        state: RecurrentState | None = None,
    ) -> tuple[Action, Parameters]:
        """Draws an action for each observation; see `Policy.act`."""
        return self._act_uniformly(observation, substep_key)

    def log_prob(self, parameters: Parameters, action: Action, substep_key: str = FLAT_SUBSTEP) -> NDArray[np.float32]:
        """Returns log-probabilities (for Box: log-densities); see `Policy.log_prob`."""
        return self._uniform[substep_key].log_prob(parameters, action)

    def parameters_of(self, observation: Observation, substep_key: str, state: RecurrentState | None) -> Parameters:
        """See `Policy.parameters_of`."""
        return self._act_uniformly(observation, substep_key)[1]

    def _load(self, state: PolicyState) -> None:
        check_policy_state({}, state)
