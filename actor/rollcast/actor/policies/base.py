"""The acting interface: observations in, actions out; no autograd, and for small networks no torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import action_mask_of
from rollcast.actor.policies.distributions import Action, Parameters
from rollcast.actor.policies.exploration import Exploration, read_exploration, without_exploration
from rollcast.actor.policies.heads import head_distribution
from rollcast.actor.policies.uniform_actions import uniform_actions
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.policies import PolicyHead, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, Observation


class Policy(ABC):
    """Acts for all of an actor's environments at once.

        policy.load(version, state)
        action, parameters = policy.act(observation)
        log_prob = policy.log_prob(parameters, action)

    Not thread-safe: it owns buffers and a generator of random numbers. Whoever acts also loads, between rollouts.
    """

    def __init__(self, spaces: EnvironmentSpaces, *, seed: int, head: PolicyHead = "default", slot: int = 0) -> None:
        """Prepares for the spaces.

        Args:
            spaces: The environment's spaces by substep key.
            seed: Seeds the sampling of actions.
            head: What the parameters mean.
            slot: The actor's, at least 0: which of the rates of exploration is its own.

        Raises:
            InvalidSpaceError: If an action space is of a kind that is not supported, or not with this head, or an
                action mask is none.
        """
        self.spaces = spaces
        self._head: PolicyHead = head
        self._slot = slot
        self._distributions = {key: head_distribution(substep, head) for key, substep in spaces.items()}
        self._uniform = {key: uniform_actions(substep) for key, substep in spaces.items()}
        self._masks = {key: action_mask_of(substep) for key, substep in spaces.items()}
        self._exploration = Exploration()
        self._version: int | None = None
        self.seed(seed)

    @property
    def version(self) -> int:
        """The version of the weights it acts with; 0 before the first `load`."""
        return self._version or 0

    @property
    def exploration(self) -> Exploration:
        """How it explores, by the weights it acts with."""
        return self._exploration

    def event_sources(self) -> Sequence[FiresEvents]:
        """Everything in it that fires events: itself, if it does."""
        return (self,) if isinstance(self, FiresEvents) else ()

    def seed(self, seed: int) -> None:
        """Starts the sampling of actions over.

        Args:
            seed: At least 0. The same seed and observations give the same actions.
        """
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def act(
        self, observation: Observation, *, deterministic: bool = False, substep_key: str = FLAT_SUBSTEP
    ) -> tuple[Action, Parameters]:
        """Chooses an action for each observation, among those that its `action_mask` allows if it has one.

        Args:
            observation: `[B, ...]` for every leaf of the observation space.
            deterministic: The likeliest action instead of a sample; nothing is explored.
            substep_key: Who acts.

        Returns:
            The actions, `[B, ...]` in the space's dtype, a fresh array; and float32 `[B, P]`, the parameters of the
            distributions they come from, which may be a buffer that the next call overwrites. While it explores
            uniformly they are all 0: the network is not asked. What is not allowed has `action_masks.FORBIDDEN`.

        Raises:
            NotReadyError: If no weights have been loaded.
        """
        if self._version is None:
            raise NotReadyError("the policy has no weights yet; expected load() before act(); load a version first")
        if self._exploration.uniform and not deterministic:
            return self._act_uniformly(observation, substep_key)
        distribution = self._distributions[substep_key]
        parameters = self._parameters_of(observation, substep_key)
        if deterministic:
            return distribution.mode(parameters), parameters
        return distribution.sample(parameters, self._rng), parameters

    def log_prob(self, parameters: Parameters, action: Action, substep_key: str = FLAT_SUBSTEP) -> NDArray[np.float32]:
        """Log-probability (for Box: density) of actions, for many steps at once.

        It is that of what was sampled from: the distribution of the head, epsilon included, or the uniform one.

        Args:
            parameters: float32 `[..., P]`, as `act` returned them, with the weights that are loaded now.
            action: `[..., ...]`, likewise.
            substep_key: Who acted.

        Returns:
            float32 `[...]`.
        """
        if self._exploration.uniform:
            return self._uniform[substep_key].log_prob(parameters, action)
        return self._distributions[substep_key].log_prob(parameters, action)

    def load(self, version: int, state: PolicyState) -> None:
        """Acts with these weights from now on.

        Args:
            version: Their version, at least 0.
            state: A `TorchPolicy`'s arrays, those of exploration included; they are copied.

        Raises:
            ProtocolMismatchError: If names, shapes or dtypes are not those of this policy. It then keeps what it had.
            InvalidTensorError: If a number is NaN, or a weight infinite; likewise.
        """
        exploration = read_exploration(state, self._head, slot=self._slot)
        self._load(without_exploration(state))
        if exploration.epsilon != self._exploration.epsilon:
            self._distributions = {
                key: head_distribution(substep, self._head, epsilon=exploration.epsilon)
                for key, substep in self.spaces.items()
            }
        self._exploration = exploration
        self._version = version

    def _act_uniformly(self, observation: Observation, substep_key: str) -> tuple[Action, Parameters]:
        n, n_parameters = len(next(iter(observation.values()))), self._distributions[substep_key].n_parameters
        nothing: Parameters = np.zeros((n, n_parameters), dtype=np.float32)
        if (mask := self._masks[substep_key]) is not None:
            mask.forbid(nothing, observation)
        return self._uniform[substep_key].sample(nothing, self._rng), nothing

    @abstractmethod
    def _parameters_of(self, observation: Observation, substep_key: str) -> Parameters:
        """Computes float32 `[B, P]`, with the action mask applied."""

    @abstractmethod
    def _load(self, state: PolicyState) -> None:
        """Checks and copies the arrays, those of exploration excluded."""
