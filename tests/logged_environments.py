"""Environments that log what they are given and what they return, and hand out the same buffers again and again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv

from rollcast.actor.vector.sequential import SequentialVectorEnv

Leaves = dict[str, NDArray[Any]]

PLACE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = spaces.Dict({"place": PLACE, "deep": spaces.Tuple((spaces.Box(-9, 9, (1, 2), np.float64),))})
FORCE = spaces.Box(-0.5, np.array([0.5, np.inf], np.float32), (2,), np.float32)
AGENTS = ["walker_0", "walker_1", "walker_2"]
# of an episode in every step
P_END, P_CUT = 0.15, 0.15


class Transition(NamedTuple):
    """An agent's action, and its results until the agent saw something again."""

    observation: Leaves
    action: NDArray[Any]
    reward: float
    following: Leaves
    terminated: bool
    truncated: bool


class TransitionLog:
    """A file of transitions, written from whichever process has the environment.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, transition: Transition) -> None:
        """Keeps a transition at once."""
        self._file.write(json.dumps(transition, default=_array_to_json).encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_log(path: Path) -> list[Transition]:
    """Reads what has been written so far."""
    lines = path.read_text().splitlines()
    return [Transition(*json.loads(line, object_hook=_array_from_json)) for line in lines]


def _array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "values": array.tolist()}


def _array_from_json(document: dict[str, Any]) -> Any:
    if document.keys() != {"dtype", "values"}:
        return document
    return np.array(document["values"], document["dtype"])


def log_path(log_dir: str | Path, seed: int, agent: str = "") -> Path:
    """The log of an environment, which its first seed names, or of one of its agents."""
    return Path(log_dir) / f"{seed}{agent}"


class Buffers:
    """One observation that is written over again and again: the same arrays, and the same dict around them."""

    def __init__(self, *, nested: bool) -> None:
        self.space: spaces.Space[Any] = NESTED if nested else PLACE
        self._place = np.zeros(3, np.float32)
        self._deep = np.zeros((1, 2), np.float64)
        self.observation: Any = {"place": self._place, "deep": (self._deep,)} if nested else self._place
        self._nested = nested

    def write(self, rng: np.random.Generator) -> None:
        """Draws what is seen from now on."""
        self._place[:] = rng.normal(size=3)
        self._deep[:] = rng.uniform(-9, 9, (1, 2))

    def copy(self) -> Leaves:
        """Returns its arrays, by the paths of the space's leaves."""
        return {"place": self._place.copy(), "deep/0": self._deep.copy()} if self._nested else {"": self._place.copy()}


class LoggedEnv(gymnasium.Env[Any, Any]):
    """A flat environment whose episodes end and are cut at random; it writes to the action it was given, too."""

    def __init__(self, log_dir: str, *, nested: bool = False) -> None:
        self._buffers = Buffers(nested=nested)
        self.observation_space = self._buffers.space
        self.action_space = FORCE
        self._log_dir = log_dir
        self._log: TransitionLog | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None and self._log is None:
            self._log = TransitionLog(log_path(self._log_dir, seed))
        self._buffers.write(self.np_random)
        return self._buffers.observation, {}

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, given = self._buffers.copy(), action.copy()
        action[:] = 77.0
        self._buffers.write(self.np_random)
        reward = float(self.np_random.integers(-5, 6))
        terminated, truncated = bool(self.np_random.random() < P_END), bool(self.np_random.random() < P_CUT)
        self._log.write(Transition(before, given, reward, self._buffers.copy(), terminated, truncated))
        return self._buffers.observation, reward, terminated, truncated, {}

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


class _Agents:
    """The base of the two environments with several agents: buffers, random ends, and a log an agent."""

    metadata: Mapping[str, Any] = {"name": "logged"}

    def _prepare(self, log_dir: str, *, nested: bool) -> None:
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._nested = nested
        self._log_dir = log_dir
        self._logs: dict[str, TransitionLog] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return NESTED if self._nested else PLACE

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return FORCE

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if seed is not None and not self._logs:
            self._logs = {agent: TransitionLog(log_path(self._log_dir, seed, agent)) for agent in AGENTS}
        self.agents = list(AGENTS)
        # Of the transitions that have begun: what was seen and done.
        self._begun: dict[str, tuple[Leaves, NDArray[Any]]] = {}

    def _draw_ends(self) -> tuple[dict[str, bool], dict[str, bool]]:
        """Ends the episode of nobody, of one, or of all who live."""
        fate = self._rng.random()
        ending = self.agents if fate < 0.1 else [self._rng.choice(self.agents)] if fate < 0.25 else []
        is_cut = bool(self._rng.random() < 0.5)
        return (
            {agent: agent in ending and not is_cut for agent in self.agents},
            {agent: agent in ending and is_cut for agent in self.agents},
        )

    def _complete(self, agent: str, reward: float, following: Leaves, terminated: bool, truncated: bool) -> None:
        if agent in self._begun:
            row = Transition(*self._begun.pop(agent), float(reward), following, terminated, truncated)
            self._logs[agent].write(row)


class LoggedTogether(_Agents, ParallelEnv):
    """Agents that act at once; each has a buffer."""

    def __init__(self, log_dir: str, *, nested: bool = False) -> None:
        self._prepare(log_dir, nested=nested)
        self._buffers = {agent: Buffers(nested=nested) for agent in AGENTS}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._begin(seed)
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, NDArray[Any]]) -> tuple[Any, Any, Any, Any, Any]:
        for agent, action in actions.items():
            self._begun[agent] = self._buffers[agent].copy(), action.copy()
            action[:] = 77.0
        observations = self._look()
        rewards = {agent: float(self._rng.integers(-5, 6)) for agent in self.agents}
        terminated, truncated = self._draw_ends()
        for agent in self.agents:
            following = self._buffers[agent].copy()
            self._complete(agent, rewards[agent], following, terminated[agent], truncated[agent])
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return observations, rewards, terminated, truncated, infos

    def _look(self) -> dict[str, Any]:
        for agent in self.agents:
            self._buffers[agent].write(self._rng)
        return {agent: self._buffers[agent].observation for agent in self.agents}


class LoggedTurns(_Agents, AECEnv):
    """Agents that take turns; all of them share one buffer, which every `last()` overwrites."""

    def __init__(self, log_dir: str, *, nested: bool = False) -> None:
        AECEnv.__init__(self)
        self._prepare(log_dir, nested=nested)
        self._buffers = Buffers(nested=nested)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._begin(seed)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.rewards, self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0), dict.fromkeys(AGENTS, 0.0)
        self.infos = {agent: {} for agent in AGENTS}
        self._skip_agent_selection = None
        self.agent_selection = AGENTS[0]

    def observe(self, agent: str) -> Any:
        self._buffers.write(self._rng)
        return self._buffers.observation

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().last(observe)
        self._complete(self.agent_selection, reward, self._buffers.copy(), terminated, truncated)
        return seen, reward, terminated, truncated, info

    def step(self, action: NDArray[Any] | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._begun[agent] = self._buffers.copy(), action.copy()
        action[:] = 77.0
        self._cumulative_rewards[agent] = 0.0
        # A reward before an agent's first action belongs to no transition.
        self.rewards = {name: float(self._rng.integers(-5, 6)) * (name in self._begun) for name in self.agents}
        self._accumulate_rewards()
        self.terminations, self.truncations = self._draw_ends()
        living = [name for name in self.agents if not (self.terminations[name] or self.truncations[name])]
        later = [name for name in living if name > agent]
        self.agent_selection = (later or living or [agent])[0]
        self._deads_step_first()


def next_step_vector(num_envs: int, **env_kwargs: Any) -> VectorEnv:
    """A registered vector that resets in the step after; its observations are buffers, too."""
    return SyncVectorEnv([lambda: LoggedEnv(**env_kwargs)] * num_envs, copy=False)


def same_step_vector(num_envs: int, **env_kwargs: Any) -> VectorEnv:
    """A registered vector that resets in the same step."""
    return SequentialVectorEnv(
        [lambda: LoggedEnv(**env_kwargs)] * num_envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP
    )


def register() -> None:
    """Registers the ids `LoggedNextStep-v0` and `LoggedSameStep-v0`."""
    for name, vector in (("LoggedNextStep-v0", next_step_vector), ("LoggedSameStep-v0", same_step_vector)):
        gymnasium.register(name, entry_point=LoggedEnv, vector_entry_point=vector)
