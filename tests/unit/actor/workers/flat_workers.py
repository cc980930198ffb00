"""Builders of rollout workers, and of numbered environments for them."""

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.vector.make import environment_spaces
from rollcast.actor.workers.make import make_worker
from tests.unit.actor.sample_environments import (
    NumberedEnv,
)

LENGTHS = ((3, 1, 4, 2), (1, 1), (5,), (2, 7))


SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def vector_of(*factories, mode=SAME, copy=False):
    return SyncVectorEnv(list(factories), copy=copy, autoreset_mode=mode)


def numbered_vector(kind=NumberedEnv, mode=SAME):
    return vector_of(*(lambda lengths=lengths: kind(lengths) for lengths in LENGTHS), mode=mode)


def worker_of(vector_env, n_rollout_steps=5, *, policy=None, env_seed=0, **arguments):
    """A worker of flat or structured environments, which acts randomly unless it is given a policy."""
    policy = policy or RandomPolicy(environment_spaces(vector_env), seed=0)
    return make_worker(vector_env, policy, n_rollout_steps, actor_id="a", incarnation=3, env_seed=env_seed, **arguments)


class BatchedVectorEnv(VectorEnv):
    """Like an entry point: SAME_STEP with its final observations in one batch, or forgotten, or a step that raises."""

    metadata = {"autoreset_mode": SAME}  # noqa: RUF012
    single_observation_space = spaces.Discrete(1000)
    single_action_space = spaces.Discrete(2)
    num_envs = 2

    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.state = np.zeros(2, np.int64)

    def reset(self, *, seed=None, options=None):
        assert isinstance(seed, int)
        return self.state.copy(), {}

    def step(self, actions):
        if self.behaviour == "raises":
            raise RuntimeError("broken")
        self.state += 1
        final = self.state.copy()
        terminated = self.state % [3, 4] == 0
        self.state[terminated] += 100
        infos = {"final_obs": final} if self.behaviour == "batched" and terminated.any() else {}
        return self.state.copy(), np.ones(2, np.float32), terminated, np.zeros(2, bool), infos
