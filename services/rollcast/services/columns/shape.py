"""The shape of rollouts, on which a learner and an actor agree at Join."""

from dataclasses import dataclass, replace
from typing import Self

from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """The spaces of an actor's rollouts, and the sizes of their columns.

    Attributes:
        spaces: The spaces by substep key.
        n_rollout_steps: T.
        n_envs: The actor's number of environments. B is n_envs times the number of agents of the rollout's substep.
        state_size: S, the size of the recurrent state in every rollout; 0: the policy is not recurrent.
        frame_stack: K, the number of frames in the policy's input. Every rollout has the K - 1 previous frames.
    """

    spaces: EnvironmentSpaces
    n_rollout_steps: int
    n_envs: int = 1
    state_size: int = 0
    frame_stack: int = 1

    @classmethod
    def played_with(cls, spec: PolicySpec, spaces: EnvironmentSpaces, n_rollout_steps: int, n_envs: int = 1) -> Self:
        """Returns the shape of rollouts of a policy with this architecture."""
        return cls(spaces, n_rollout_steps, n_envs, spec.state_size, spec.frame_stack)

    def step_shape(self, key: str) -> tuple[int, int]:
        """Returns T and B of the rollouts of a substep."""
        return self.n_rollout_steps, self.n_envs * self.spaces[key].n_agents

    def of_envs(self, n_envs: int) -> Self:
        """Returns the shape of the rollouts of an actor with `n_envs` environments."""
        return replace(self, n_envs=n_envs)

    def of_substep(self, key: str) -> Self:
        """Returns the shape of the rollouts of one substep."""
        return replace(self, spaces={key: self.spaces[key]})
