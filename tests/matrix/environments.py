"""Environments of any spaces and any agents, short and random: `tests.matrix.environments:make`."""

from collections.abc import Mapping
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from pettingzoo import AECEnv, ParallelEnv

from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.services.spaces.spaces import SubstepSpaces

# Importing the module registers the id; its vector resets in the step after the end of an episode.
REGISTERED_ID: Final = f"{__name__}:OfTheMatrix-v0"

Space = spaces.Space[Any]

_VECTOR: Final = spaces.Box(-1, 1, (3,), np.float32)
_IMAGE: Final = spaces.Box(0, 255, (36, 36, 1), np.uint8)
_UNSUPPORTED: Final[dict[str, Space]] = {
    "text": spaces.Text(4),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "graph": spaces.Graph(spaces.Discrete(3), None),
    "one of": spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
}

OBSERVATIONS: Final[dict[str, Space]] = {
    "vector": _VECTOR,
    "scalar": spaces.Box(-1, 1, (), np.float64),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "integers": spaces.Box(0, 255, (5,), np.uint8),
    "image": _IMAGE,
    "image, channels first": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "grey image": spaces.Box(0, 255, (36, 36), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict({"camera": _IMAGE, "body": spaces.Dict({"arm": _VECTOR, "gear": spaces.Discrete(3)})}),
    "tuple": spaces.Tuple((_VECTOR, spaces.MultiDiscrete([2, 2]))),
    **_UNSUPPORTED,
}

ACTIONS: Final[dict[str, Space]] = {
    "discrete": spaces.Discrete(3),
    "discrete, from 1": spaces.Discrete(3, start=1),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
    "box": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
    "box of float64": spaces.Box(-1, 1, (1, 2), np.float64),
    "box without bounds": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "box of integers": spaces.Box(0, 3, (2,), np.int32),
    "dict": spaces.Dict({"gear": spaces.Discrete(2)}),
    "tuple": spaces.Tuple((spaces.Discrete(2),)),
    **_UNSUPPORTED,
}

# Kinds of masks of allowed actions, by the space that holds them.
MASKS: Final = ("none", "multi-binary", "box")
# Kinds of agents: one; several at once, in turns, or with different spaces; one with two kinds of actions.
AGENTS: Final = ("one", "at once", "in turns", "different", "different actions", "two substeps")


class _Character:
    """One agent: draws observations and masks, and refuses actions that are not allowed."""

    def __init__(self, observation: Space, action: Space, mask: str) -> None:
        self.action_space = action
        self._seen = observation
        self._n_masked = _n_actions(action)
        self._mask: Space | None = {
            "none": None,
            "multi-binary": spaces.MultiBinary(self._n_masked),
            "box": spaces.Box(0, 1, (self._n_masked,), np.int8),
        }[mask]
        self._allowed: np.ndarray | None = None
        self.observation_space: Space = (
            observation if self._mask is None else spaces.Dict({"seen": observation, "action_mask": self._mask})
        )

    def seed(self, seed: int | None) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen.seed(None if seed is None else int(seed) % 2**31)

    def observe(self) -> Any:
        seen = self._seen.sample()
        if self._mask is None:
            return seen
        # of each element of the action at least the first choice
        self._allowed = self._rng.integers(0, 2, self._n_masked).astype(np.int8)
        self._allowed[_firsts(self.action_space)] = 1
        return {"seen": seen, "action_mask": self._allowed}

    def take(self, action: Any) -> None:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self._allowed is not None:
            start = np.asarray(getattr(self.action_space, "start", 0)).ravel()
            chosen = np.asarray(action).ravel() - start + _firsts(self.action_space)
            if not self._allowed[chosen].all():
                raise ValueError(f"{action!r} is not allowed: {self._allowed}")


def _sizes(action: Space) -> list[int]:
    if isinstance(action, spaces.Discrete):
        return [int(action.n)]
    return [int(size) for size in action.nvec.ravel()] if isinstance(action, spaces.MultiDiscrete) else [2]


def _n_actions(action: Space) -> int:
    return sum(_sizes(action))


def _firsts(action: Space) -> np.ndarray:
    return np.cumsum([0, *_sizes(action)[:-1]])


def _ends(step: int) -> tuple[bool, bool]:
    """Returns whether an episode terminates or is truncated: after 3 steps, and every second time after 5."""
    return step % 8 == 3, step % 8 == 0


class OneAgent(gymnasium.Env[Any, Any]):
    """Episodes of 3 steps that terminate, and of 5 that are truncated, in turn."""

    metadata: Mapping[str, Any] = {"render_modes": []}

    def __init__(self, observation: str, action: str, mask: str = "none") -> None:
        self._agent = _Character(OBSERVATIONS[observation], ACTIONS[action], mask)
        self.observation_space = self._agent.observation_space
        self.action_space = self._agent.action_space
        self._step = 0
        self._agent.seed(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._agent.seed(seed)
            self._step = 0
        return self._agent.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._agent.take(action)
        self._step += 1
        return self._agent.observe(), float(self._step % 3), *_ends(self._step), {}


class _Players:
    """Two agents, `player_0` and `player_1`; in games of different agents the second sees or does something else."""

    def __init__(self, observation: str, action: str, mask: str, agents: str) -> None:
        self.possible_agents = ["player_0", "player_1"]
        seen, done = OBSERVATIONS[observation], ACTIONS[action]
        others = (
            spaces.Discrete(4) if agents == "different" else seen,
            spaces.Discrete(4) if agents == "different actions" else done,
        )
        self.characters = {"player_0": _Character(seen, done, mask), "player_1": _Character(*others, mask)}

    def seed(self, seed: int | None) -> None:
        for index, agent in enumerate(self.characters.values()):
            agent.seed(None if seed is None else seed + index)


class AtOnce(ParallelEnv[str, Any, Any]):
    """The second agent ends one step before the first."""

    metadata: Mapping[str, Any] = {"name": "at_once"}
    render_mode = None

    def __init__(self, players: _Players) -> None:
        self._players = players
        self.possible_agents = players.possible_agents
        self.agents: list[str] = []
        players.seed(0)

    def observation_space(self, agent: str) -> Space:
        return self._players.characters[agent].observation_space

    def action_space(self, agent: str) -> Space:
        return self._players.characters[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._players.seed(seed)
        self._step = 0
        self.agents = list(self.possible_agents)
        return self._observe(), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        for name, action in actions.items():
            self._players.characters[name].take(action)
        self._step += 1
        acted, observations = self.agents, self._observe()
        ended = {name: self._step == (5 if name == "player_0" else 4) for name in acted}
        self.agents = [name for name in acted if not ended[name]]
        rewards = {name: float(self._step) for name in acted}
        none = dict.fromkeys(acted, False)
        terminated, truncated = (ended, none) if self._step == 4 else (none, ended)
        return observations, rewards, terminated, truncated, {name: {} for name in acted}

    def _observe(self) -> dict[str, Any]:
        return {name: self._players.characters[name].observe() for name in self.agents}


class InTurns(AECEnv[str, Any, Any]):
    """The agents move in turn, three times each."""

    metadata: Mapping[str, Any] = {"name": "in_turns", "is_parallelizable": False}
    render_mode = None

    def __init__(self, players: _Players) -> None:
        super().__init__()
        self._players = players
        self.possible_agents = players.possible_agents
        self.agents = []
        players.seed(0)

    def observation_space(self, agent: str) -> Space:
        return self._players.characters[agent].observation_space

    def action_space(self, agent: str) -> Space:
        return self._players.characters[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._players.seed(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {name: {} for name in self.agents}
        self._step = 0
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        return self._players.characters[agent].observe()

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        self._players.characters[name].take(action)
        self._step += 1
        self._cumulative_rewards[name] = 0.0
        self.rewards = dict.fromkeys(self.agents, 1.0)
        if self._step == 6:
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.possible_agents[self._step % 2]
        self._accumulate_rewards()


class TwoSubsteps(StructuredEnv):
    """One agent that first chooses and then acts, three times."""

    def __init__(self, observation: str, action: str, mask: str) -> None:
        self._parts = {
            key: _Character(OBSERVATIONS[observation], ACTIONS[action], mask) for key in ("choose", "execute")
        }
        self.spaces = {
            key: SubstepSpaces(observation=part.observation_space, action=part.action_space)
            for key, part in self._parts.items()
        }
        for part in self._parts.values():
            part.seed(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        if seed is not None:
            for index, part in enumerate(self._parts.values()):
                part.seed(seed + index)
        self._step = 0
        return Turn(observations={ActorId("choose"): self._parts["choose"].observe()})

    def step(self, actions: Mapping[ActorId, Any]) -> Turn:
        for actor, action in actions.items():
            self._parts[actor.substep_key].take(action)
        self._step += 1
        rewards = {ActorId(key): 1.0 for key in self._parts} if self._step > 1 else {ActorId("choose"): 1.0}
        if self._step == 6:
            ends = {ActorId(key): Ended(observation=part.observe()) for key, part in self._parts.items()}
            return Turn(observations={}, rewards=rewards, ended=ends)
        key = "execute" if self._step % 2 else "choose"
        return Turn(observations={ActorId(key): self._parts[key].observe()}, rewards=rewards)


def make(observation: str, action: str, mask: str = "none", agents: str = "one") -> Any:
    """Makes an environment."""
    if agents == "one":
        return OneAgent(observation, action, mask)
    if agents == "two substeps":
        return TwoSubsteps(observation, action, mask)
    players = _Players(observation, action, mask, agents)
    return InTurns(players) if agents == "in turns" else AtOnce(players)


def _make_vector(num_envs: int, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: OneAgent(**kwargs)] * num_envs)


gymnasium.register(REGISTERED_ID.rpartition(":")[2], entry_point=OneAgent, vector_entry_point=_make_vector)
