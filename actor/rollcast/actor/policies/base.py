"""Defines `Policy`, the actors' interface to a policy: observations in, actions out, without autograd."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_of
from rollcast.actor.policies.distributions import Action, Parameters
from rollcast.actor.policies.exploration import Exploration, read_exploration, without_exploration
from rollcast.actor.policies.frame_stacks import FrameStacks
from rollcast.actor.policies.heads import Q_HEADS, head_distribution
from rollcast.actor.policies.uniform_actions import uniform_actions
from rollcast.actor.statistics.firing import FiresEvents
from rollcast.services.errors import InvalidInputError, NotReadyError
from rollcast.services.policies.policies import PolicyHead, PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces, Observation, SubstepSpaces, space_leaves

# float32 [N, S]: the recurrent states of N trajectories.
RecurrentState: TypeAlias = NDArray[np.float32]


class Policy(ABC):
    """A policy that acts for all of an actor's environments at once.

        policy.load(version, state)
        action, parameters = policy.act(observation)
        log_prob = policy.log_prob(parameters, action)

    The caller keeps the state of a recurrent policy, from `initial_state`. At the beginning of an episode, the caller
    sets the row of the state to 0:

        state = policy.initial_state(len(observation))
        action, parameters = policy.act(observation, state=state)

    For a policy with a frame stack, the caller also keeps the last frames, from `frame_stacks`:

        stacks = policy.frame_stacks(len(observation))
        action, parameters = policy.act(stacks.push(observation))

    Not thread-safe, because a policy owns buffers and a random generator. The acting thread also loads weights, between
    rollouts.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        *,
        seed: int,
        head: PolicyHead = "default",
        slot: int = 0,
        state_size: int = 0,
        frame_stack: int = 1,
    ) -> None:
        """Prepares the policy for the spaces.

        Args:
            spaces: The environment's spaces by substep key.
            seed: Seeds the sampling of actions.
            head: The meaning of the network's outputs.
            slot: The actor's slot, at least 0; selects the actor's exploration rate.
            state_size: S, the size of the recurrent state; 0: not recurrent.
            frame_stack: K, the number of frames in the network's input.

        Raises:
            InvalidSpaceError: If an action space is not supported at all or with this head, or an action mask has a
                wrong space.
        """
        self.spaces = spaces
        self._head: PolicyHead = head
        self._slot = slot
        self._state_size = state_size
        self._frame_stack = frame_stack
        # For each substep, a leaf whose shape shows whether frames are stacked, and the shape of one of its frames.
        self._framed = {key: _first_leaf(substep) for key, substep in spaces.items()} if frame_stack > 1 else None
        self._distributions = {key: head_distribution(substep, head) for key, substep in spaces.items()}
        self._uniform = {key: uniform_actions(substep) for key, substep in spaces.items()}
        self._masks = {key: action_mask_of(substep) for key, substep in spaces.items()}
        self._exploration = Exploration()
        self._version: int | None = None
        self.seed(seed)

    @property
    def version(self) -> int:
        """The version of the loaded weights; 0 before the first `load`."""
        return self._version or 0

    @property
    def exploration(self) -> Exploration:
        """The exploration that was loaded with the weights."""
        return self._exploration

    @property
    def is_stochastic(self) -> bool:
        """True: the policy samples from a learnt distribution. False: it takes the action of the highest value."""
        return self._head not in Q_HEADS

    def initial_state(self, n: int) -> RecurrentState | None:
        """Returns the state of `n` trajectories that begin an episode: zeros `[n, S]`; None: not recurrent."""
        return np.zeros((n, self._state_size), np.float32) if self._state_size else None

    def frame_stacks(self, n: int) -> FrameStacks | None:
        """Returns the stacks of `n` trajectories that begin an episode; None: the network takes single frames."""
        return FrameStacks(self._frame_stack, n) if self._frame_stack > 1 else None

    def event_sources(self) -> Sequence[FiresEvents]:
        """Returns the parts of the policy that fire events: the policy itself, if it is a `FiresEvents`."""
        return (self,) if isinstance(self, FiresEvents) else ()

    def seed(self, seed: int) -> None:
        """Seeds the sampling of actions.

        Args:
            seed: At least 0. The same seed and observations give the same actions.
        """
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def act(
        self,
        observation: Observation,
        *,
        deterministic: bool = False,
        substep_key: str = FLAT_SUBSTEP,
        state: RecurrentState | None = None,
    ) -> tuple[Action, Parameters]:
        """Chooses an action for each observation: an allowed action, if the observation has an `action_mask`.

        Args:
            observation: `[B, ...]` for every leaf of the observation space; with a frame stack `[B, K, ...]`, from
                `FrameStacks.push`.
            deterministic: Take the greedy action instead of a sample, without exploration.
            substep_key: The substep to act in.
            state: float32 `[B, S]`, the state of a recurrent policy. `act` changes it in place to the next state;
                uniform exploration does not change it. None if the policy is not recurrent.

        Returns:
            The actions, `[B, ...]` in the space's dtype, a fresh array; and the parameters of their distributions,
            float32 `[B, P]`, possibly in a buffer that the next call overwrites. Forbidden actions have the parameter
            `action_masks.FORBIDDEN`. Uniform exploration does not compute the network; all other parameters are then 0.

        Raises:
            NotReadyError: If no weights have been loaded.
            InvalidInputError: If the state has a wrong shape, or frames are not stacked.
        """
        if self._version is None:
            self.check_loaded()
        self._check_state(state, observation)
        if self._framed is not None:
            self._check_stacks(observation, *self._framed[substep_key])
        if self._exploration.uniform and not deterministic:
            return self._act_uniformly(observation, substep_key)
        distribution = self._distributions[substep_key]
        parameters = self.parameters_of(observation, substep_key, state)
        if deterministic:
            return distribution.mode(parameters), parameters
        return distribution.sample(parameters, self._rng), parameters

    def check_loaded(self) -> None:
        """Raises `NotReadyError` if no weights have been loaded."""
        if self._version is None:
            raise NotReadyError("the policy has no weights yet; expected load() before act(); load a version first")

    def log_prob(self, parameters: Parameters, action: Action, substep_key: str = FLAT_SUBSTEP) -> NDArray[np.float32]:
        """Returns the log-probability (for Box: log-density) of actions, for many steps at once.

        Like `act`, this method uses the head's distribution with epsilon, or the uniform distribution during uniform
        exploration.

        Args:
            parameters: float32 `[..., P]`, as `act` returned them with the present weights.
            action: `[..., ...]`, as `act` returned them.
            substep_key: The substep of the actions.

        Returns:
            float32 `[...]`.
        """
        if self._exploration.uniform:
            return self._uniform[substep_key].log_prob(parameters, action)
        return self._distributions[substep_key].log_prob(parameters, action)

    def load(self, version: int, state: PolicyState) -> None:
        """Loads weights. After an error, the policy keeps its previous weights.

        Args:
            version: Version of the weights, at least 0.
            state: The arrays of a `TorchPolicy`, including those of exploration. The policy copies the arrays.

        Raises:
            ProtocolMismatchError: If names, shapes or dtypes do not fit this policy.
            InvalidTensorError: If a number is NaN, or a weight infinite.
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
        no_parameters: Parameters = np.zeros((n, n_parameters), dtype=np.float32)
        if (mask := self._masks[substep_key]) is not None:
            mask.forbid(no_parameters, observation)
        return self._uniform[substep_key].sample(no_parameters, self._rng), no_parameters

    def _check_state(self, state: RecurrentState | None, observation: Observation) -> None:
        found = None if state is None else state.shape
        expected = (len(next(iter(observation.values()))), self._state_size) if self._state_size else None
        if found != expected:
            raise InvalidInputError(
                f"the recurrent state has shape {found}; expected {expected} of this policy for these observations; "
                "pass state=policy.initial_state(n) for n observations that begin an episode, then the same array again"
            )

    def _check_stacks(self, observation: Observation, path: str, shape: tuple[int, ...]) -> None:
        if (found := observation[path].shape[1:]) != (expected := (self._frame_stack, *shape)):
            raise InvalidInputError(
                f"an observation at {path!r} has shape {list(found)}; expected {list(expected)}, the last "
                f"{self._frame_stack} frames; pass the result of policy.frame_stacks(n).push(observation)"
            )

    @abstractmethod
    def parameters_of(self, observation: Observation, substep_key: str, state: RecurrentState | None) -> Parameters:
        """Computes the parameters that `act` returns, and applies the action mask. Changes the state in place.

        Args:
            observation: See `act`.
            substep_key: The substep.
            state: See `act`.

        Returns:
            float32 `[B, P]`, possibly in a buffer that the next call overwrites.
        """

    @abstractmethod
    def _load(self, state: PolicyState) -> None:
        """Checks and copies the arrays, without those of exploration."""


def _first_leaf(substep: SubstepSpaces) -> tuple[str, tuple[int, ...]]:
    leaves = space_leaves(substep.observation)
    return next((path, tuple(leaf.shape or ())) for path, leaf in leaves.items() if path != ACTION_MASK)
