"""The simplest replay buffer that works, so that algorithms can be seen to learn without the real one."""

import numpy as np
import torch

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.make import environment_spaces, make_vector_env
from rollcast.actor.workers.flat import RolloutWorker
from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.batches import build_batch


class ReplayList:
    """Transitions of up to n steps, n ending where the rollout or the episode does."""

    def __init__(self, capacity: int, *, discount: float, n_steps: int = 1, alpha: float = 0.0, seed: int = 0) -> None:
        self._columns: dict[str, np.ndarray] = {}
        self._priorities = np.zeros(capacity)
        self._capacity, self._discount, self._n_steps, self._alpha = capacity, discount, n_steps, alpha
        self._next = self.size = 0
        self._rng = np.random.default_rng(seed)

    def insert(self, rollout: Rollout) -> None:
        columns = rollout.substeps[FLAT_SUBSTEP]
        observation, following = {}, {}
        for path, leaf in columns.observation.items():
            observation[path] = leaf
            following[path] = np.concatenate([leaf[1:], columns.last_observation[path][None]])
            following[path][tuple(rollout.final_index.T)] = columns.final_observation[path]
        ended = rollout.terminated | rollout.truncated
        n_steps, n_envs = rollout.reward.shape
        for t in range(n_steps):
            folded, discount = np.zeros(n_envs, np.float32), np.ones(n_envs, np.float32)
            going, last = np.ones(n_envs, bool), np.full(n_envs, t)
            for step in range(t, min(t + self._n_steps, n_steps)):
                folded += going * discount * rollout.reward[step]
                discount = np.where(going, discount * np.float32(self._discount), discount)
                last = np.where(going, step, last)
                going &= ~ended[step]
            envs = np.arange(n_envs)
            rows = {
                "action": columns.action[t],
                "reward": folded,
                "terminated": rollout.terminated[last, envs],
                "discount": discount,
            }
            rows |= {f"observation/{path}": leaf[t] for path, leaf in observation.items()}
            rows |= {f"next/{path}": leaf[last, envs] for path, leaf in following.items()}
            keep = envs if rollout.valid is None else envs[rollout.valid[t]]
            self._append({name: row[keep] for name, row in rows.items()})

    def sample(self, n: int, *, beta: float = 0.4) -> Batch:
        p = self._priorities[: self.size] ** self._alpha
        p /= p.sum()
        keys = self._rng.choice(self.size, n, p=p) if self._alpha else self._rng.integers(self.size, size=n)
        weights = (self.size * p[keys]) ** -beta
        row = {name: torch.from_numpy(column[keys]) for name, column in self._columns.items()}
        leaves = {
            kind: {name.removeprefix(kind): column for name, column in row.items() if name.startswith(kind)}
            for kind in ("observation/", "next/")
        }
        columns = BatchColumns(
            observation={path: leaf[None] for path, leaf in leaves["observation/"].items()},
            action=row["action"][None],
            log_prob=torch.zeros(1, n),
            last_observation=leaves["next/"],
            final_observation={path: leaf[:0] for path, leaf in leaves["next/"].items()},
        )
        return build_batch(
            columns,
            reward=row["reward"][None],
            terminated=row["terminated"][None],
            keys=keys,
            weights=torch.from_numpy((weights / weights.max()).astype(np.float32)) if self._alpha else None,
            discount=row["discount"],
        )

    def update(self, batch: Batch, priorities: torch.Tensor) -> None:
        self._priorities[batch.keys] = priorities.numpy() + 1e-3

    def _append(self, rows: dict[str, np.ndarray]) -> None:
        n = len(rows["reward"])
        if not self._columns:
            self._columns = {name: np.zeros((self._capacity, *row.shape[1:]), row.dtype) for name, row in rows.items()}
        slots = (self._next + np.arange(n)) % self._capacity
        for name, row in rows.items():
            self._columns[name][slots] = row
        self._priorities[slots] = self._priorities.max() or 1.0
        self._next = (self._next + n) % self._capacity
        self.size = min(self.size + n, self._capacity)


class Actors:
    """Two actors, one after the other, with their own slots."""

    def __init__(self, algorithm: Algorithm, env_id: str, n_envs: int, n_rollout_steps: int, seed: int) -> None:
        self._pairs: list[tuple[Policy, RolloutWorker]] = []
        for slot in range(2):
            vector_env = make_vector_env(EnvironmentFactory(env_id, {}, "sync"), n_envs)
            policy = make_policy(environment_spaces(vector_env), algorithm.policy.spec, seed=2 * seed + slot, slot=slot)
            worker = RolloutWorker(
                vector_env, policy, n_rollout_steps, actor_id="a", incarnation=1, env_seed=2 * seed + slot
            )
            self._pairs.append((policy, worker))

    def collect(self, algorithm: Algorithm) -> list[Rollout]:
        state, rollouts = algorithm.policy_state(), []
        for policy, worker in self._pairs:
            policy.load(algorithm.n_updates, state)
            rollouts.append(worker.collect())
        return rollouts

    def close(self) -> None:
        for _, worker in self._pairs:
            worker.close()


def train(
    algorithm: Algorithm,
    actors: Actors,
    replay: ReplayList,
    *,
    n_env_steps: int,
    n_initial: int,
    batch_size: int,
    updates_per_step: float,
) -> None:
    """Fills the replay uniformly, then acts and learns in turn."""
    env_steps, owed = 0, 0.0
    algorithm.policy.set_uniform_exploration(True)
    while env_steps < n_env_steps:
        for rollout in actors.collect(algorithm):
            replay.insert(rollout)
            env_steps += rollout.n_env_steps
            owed += rollout.n_env_steps * updates_per_step
        if env_steps < n_initial:
            owed = 0.0
            continue
        algorithm.policy.set_uniform_exploration(False)
        while owed >= 1.0:
            batch = replay.sample(batch_size)
            algorithm.update(batch, progress=env_steps / n_env_steps)
            replay.update(batch, algorithm.priorities)
            owed -= 1.0
