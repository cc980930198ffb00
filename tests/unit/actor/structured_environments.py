"""Structured environments for tests: one that follows a script, in whose observations everything is numbered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from rollcast.actor.environments.structured import ActorId, Ended, StructuredEnv, Turn
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.structured import StructuredRolloutWorker
from rollcast.services.spaces.spaces import SubstepSpaces

# Two agents of one kind, one of another.
SPACES = {
    "walker": SubstepSpaces(observation=spaces.Box(-1, 1e6, (3,), np.float64), action=spaces.Discrete(4), n_agents=2),
    "guide": SubstepSpaces(
        observation=spaces.Dict(seen=spaces.Box(-1, 1e6, (3,), np.float32)), action=spaces.Box(-1, 1, (2,), np.float32)
    ),
}
ACTORS = (ActorId("walker", 0), ActorId("walker", 1), ActorId("guide", 0))


@dataclass
class Scripted:
    """The events of one turn: who acts in it; before that, who has ended (True: truncated) and who earns what."""

    acting: tuple[ActorId, ...]
    rewards: Mapping[ActorId, float] = field(default_factory=dict)
    ended: Mapping[ActorId, bool] = field(default_factory=dict)


class ScriptedEnv(StructuredEnv):
    """Plays episodes, each a list of turns, over and over. Observations are (episode, turn, actor)."""

    def __init__(self, episodes: Sequence[Sequence[Scripted]]):
        self.spaces = SPACES
        self._episodes = episodes
        self._episode = -1
        self.seeds: list[int | None] = []
        self.actions: list[Mapping[ActorId, object]] = []
        self.is_closed = False

    def reset(self, *, seed=None, options=None):
        del options
        self.seeds.append(seed)
        self._episode += 1
        self._turn = 0
        return self._now()

    def step(self, actions):
        assert set(actions) == set(self._script[self._turn].acting)
        self.actions.append(dict(actions))
        self._turn += 1
        return self._now()

    def close(self):
        self.is_closed = True

    @property
    def _script(self):
        return self._episodes[self._episode % len(self._episodes)]

    def _now(self):
        scripted = self._script[self._turn]
        return Turn(
            observations={actor: self.observation(actor) for actor in scripted.acting},
            rewards=scripted.rewards,
            ended={
                actor: Ended(observation=self.observation(actor), truncated=truncated)
                for actor, truncated in scripted.ended.items()
            },
        )

    def observation(self, actor):
        seen = np.array([self._episode, self._turn, ACTORS.index(actor)], np.float32)
        return {"seen": seen} if actor.substep_key == "guide" else seen


def expected_transitions(episodes, n_episodes):
    """By actor, in order: (observation, next observation, reward, terminated, truncated), as rollouts have them."""
    transitions = {actor: [] for actor in ACTORS}
    for number in range(n_episodes):
        begun: dict[ActorId, list] = {}
        for turn, scripted in enumerate(episodes[number % len(episodes)]):
            for actor, reward in scripted.rewards.items():
                if actor in begun:
                    begun[actor][1] += reward
            for actor in (*scripted.ended, *scripted.acting):
                seen, truncated = (number, turn, ACTORS.index(actor)), scripted.ended.get(actor)
                if actor in begun:
                    start, reward = begun.pop(actor)
                    transitions[actor].append((start, seen, reward, truncated is False, truncated is True))
                if actor in scripted.acting:
                    begun[actor] = [seen, 0.0]
    return transitions


def alternating(n_turns, *, truncated=False, reward=1.0):
    """An episode in which both walkers take turns, and the guide acts beside the first of them."""
    walkers, guide = ACTORS[:2], ACTORS[2]
    turns = [
        Scripted((walkers[turn % 2], guide) if turn % 2 == 0 else (walkers[1],), rewards={walkers[0]: reward})
        for turn in range(n_turns)
    ]
    acted = {walkers[turn % 2] for turn in range(n_turns)} | {guide}
    return [*turns, Scripted((), rewards=dict.fromkeys(acted, 10.0), ended=dict.fromkeys(sorted(acted), truncated))]


def worker_of(*envs, n_steps=4, policy=None, **arguments):
    vector_env = StructuredVectorEnv([lambda env=env: env for env in envs])
    if policy is None:
        policy = RandomPolicy(SPACES, seed=0)
        policy.load(3, {})
    return StructuredRolloutWorker(
        vector_env, policy, n_steps, **{"actor_id": "a", "incarnation": 2, "env_seed": 0} | arguments
    )
