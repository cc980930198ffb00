"""Rollouts against the environment's own log: every kind of worker and vector."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.environments.structured import SingleAgentEnv
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import Environments, environment_spaces, make_vector_env
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.make import make_worker
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.rollouts import Rollout
from tests import logged_environments
from tests.logged_environments import FORCE, LoggedEnv, Transition, log_path, read_log

N_ENVS, N_STEPS, N_ROLLOUTS, SEED = 3, 7, 12, 5
SPEC = PolicySpec(hidden_sizes=(8,))
HERE = logged_environments.__name__


def flat(vectorization: str) -> Callable[..., Environments]:
    return lambda **kwargs: make_vector_env(EnvironmentFactory(f"{HERE}:LoggedEnv", kwargs, vectorization), N_ENVS)


def registered(env_id: str) -> Callable[..., Environments]:
    return lambda **kwargs: make_vector_env(EnvironmentFactory(f"{HERE}:{env_id}", kwargs, "entry_point"), N_ENVS)


def with_agents(name: str, agent_policies: str) -> Callable[..., Environments]:
    def make(**kwargs: Any) -> Environments:
        return make_vector_env(EnvironmentFactory(f"{HERE}:{name}", kwargs, agent_policies=agent_policies), N_ENVS)

    return make


def as_structured(**kwargs: Any) -> Environments:
    return StructuredVectorEnv([lambda: SingleAgentEnv(LoggedEnv(**kwargs))] * N_ENVS)


KINDS: dict[str, Callable[..., Environments]] = {
    "one after the other": flat("sync"),
    "in processes": flat("subprocess"),
    "registered, reset in the step after": registered("LoggedNextStep-v0"),
    "registered, reset in the same step": registered("LoggedSameStep-v0"),
    "structured, one agent": as_structured,
    "agents at once, one policy": with_agents("LoggedTogether", "shared"),
    "agents at once, each its own": with_agents("LoggedTogether", "separate"),
    "agents in turns, one policy": with_agents("LoggedTurns", "shared"),
    "agents in turns, each its own": with_agents("LoggedTurns", "separate"),
}


@pytest.fixture(autouse=True)
def ids() -> Iterator[None]:
    logged_environments.register()
    yield
    for env_id in ("LoggedNextStep-v0", "LoggedSameStep-v0"):
        del gymnasium.registry[env_id]


def play(vector_env: Environments) -> list[Rollout]:
    spaces = environment_spaces(vector_env)
    policy = make_policy(spaces, SPEC, seed=3)
    policy.load(1, TorchPolicy(spaces, SPEC).state_arrays())
    worker = make_worker(vector_env, policy, N_STEPS, actor_id="a", incarnation=1, env_seed=SEED)
    rollouts = [worker.collect() for _ in range(N_ROLLOUTS)]
    worker.close()
    return rollouts


def recorded_transitions(rollouts: Sequence[Rollout], trajectory: int) -> list[Transition]:
    """Reads the transitions of a trajectory as a learner does."""
    found = []
    for rollout in rollouts:
        (columns,) = rollout.substeps.values()
        finals = {tuple(index): row for row, index in enumerate(rollout.final_index.tolist())}
        valid = np.ones(rollout.reward.shape, np.bool_) if rollout.valid is None else rollout.valid
        for t in np.flatnonzero(valid[:, trajectory]).tolist():
            if (t, trajectory) in finals:
                row = finals[t, trajectory]
                following = {path: final[row] for path, final in columns.final_observation.items()}
            elif t + 1 < rollout.n_steps:
                following = {path: column[t + 1, trajectory] for path, column in columns.observation.items()}
            else:
                following = {path: last[trajectory] for path, last in columns.last_observation.items()}
            found.append(
                Transition(
                    {path: column[t, trajectory] for path, column in columns.observation.items()},
                    columns.action[t, trajectory],
                    float(rollout.reward[t, trajectory]),
                    following,
                    bool(rollout.terminated[t, trajectory]),
                    bool(rollout.truncated[t, trajectory]),
                )
            )
    return found


def episodes_of(transitions: Sequence[Transition]) -> list[tuple[float, int]]:
    """Return and length of the episodes that have ended."""
    episodes, rewards = [], []
    for transition in transitions:
        rewards.append(transition.reward)
        if transition.terminated or transition.truncated:
            episodes.append((sum(rewards), len(rewards)))
            rewards = []
    return episodes


def assert_same(found: Transition, logged: Transition, *, has_agents: bool) -> None:
    for mine, other in ((found.observation, logged.observation), (found.following, logged.following)):
        assert mine.keys() == other.keys()
        for path, leaf in mine.items():
            np.testing.assert_array_equal(leaf, other[path])
    np.testing.assert_array_equal(np.clip(found.action, FORCE.low, FORCE.high), logged.action)
    # If agents end on their own, an agent that was both terminated and cut counts as terminated.
    truncated = logged.truncated and not (has_agents and logged.terminated)
    assert (found.reward, found.terminated, found.truncated) == (logged.reward, logged.terminated, truncated)


@pytest.mark.parametrize("nested", [False, True], ids=["one array", "nested"])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_rollouts_equal_the_environments_own_log(make, nested, tmp_path: Path):
    vector_env = make(log_dir=str(tmp_path), nested=nested)
    substeps = environment_spaces(vector_env)
    is_structured = isinstance(vector_env, StructuredVectorEnv)
    has_agents = is_structured and make is not as_structured
    rollouts = play(vector_env)
    n_clipped = n_final = 0
    for number, (key, substep) in enumerate(substeps.items()):
        of_substep = [rollout for rollout in rollouts if key in rollout.substeps]
        for trajectory in range(N_ENVS * substep.n_agents):
            seed = of_substep[0].env_seeds[trajectory]
            agent = f"walker_{number + trajectory % substep.n_agents}" if has_agents else ""
            logged = read_log(log_path(tmp_path, seed, agent))
            found = recorded_transitions(of_substep, trajectory)
            n_left = len(logged) - len(found)
            # A structured environment may be ahead: its agent has begun the first row of the next rollout.
            assert 0 <= n_left <= is_structured
            for mine, other in zip(found, logged, strict=not is_structured):
                assert_same(mine, other, has_agents=is_structured)
            episodes = [e for rollout in of_substep for e in rollout.episodes if e.env_index == trajectory]
            told = [(episode.episode_return, episode.n_steps) for episode in episodes]
            assert told[: len(episodes_of(found))] == episodes_of(found)
            assert told == episodes_of(logged)[: len(told)]
            n_clipped += sum(not FORCE.contains(transition.action) for transition in found)
            n_final += len(episodes_of(found))
    assert n_clipped > 10, "actions were to be clipped"
    assert n_final > 10, "episodes were to end"
