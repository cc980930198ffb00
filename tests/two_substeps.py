"""An environment of two substeps, made up: scouts and a base, each paid for doing what it is shown."""

from collections import deque

import numpy as np
from gymnasium.spaces import Box, Discrete

from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.errors import CollectInterruptedError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from tests.front_padding import pad_front
from tests.rollouts import build_rollout

SPACES: EnvironmentSpaces = {
    "scout": SubstepSpaces(observation=Box(0, 1, (2,), np.float32), action=Discrete(2), n_agents=3),
    "base": SubstepSpaces(observation=Box(0, 1, (4,), np.float32), action=Discrete(4)),
}
EPISODE_STEPS = 4


class TwoSubsteps:
    """Plays rollouts of both substeps in turn. Agents that act seldom have rows in front that hold nothing.

    Args:
        n_steps: T.
        n_envs: Environments; scouts are three times as many.
        seed: Of what is shown, and of who acts seldom.
        padding: How many trajectories act fewer than T times, in [0, 1].
        actor_id: Whose rollouts they are.
    """

    def __init__(self, n_steps: int, n_envs: int, *, seed: int = 0, padding: float = 0.3, actor_id: str = "a") -> None:
        self._n_steps, self._n_envs, self._padding, self._actor_id = n_steps, n_envs, padding, actor_id
        self._rng = np.random.default_rng(seed)
        self._shown = {key: self._show(key) for key in SPACES}
        self._age = dict.fromkeys(SPACES, 0)
        self._sequence = 0
        self._keys = list(SPACES)

    def play(self, policy: Policy) -> Rollout:
        """The next rollout, of the substep whose turn it is."""
        key = self._keys[self._sequence % len(self._keys)]
        self._sequence += 1
        observation, action, log_prob, reward = [], [], [], []
        terminated = np.zeros((self._n_steps, len(self._shown[key])), np.bool_)
        for t in range(self._n_steps):
            shown = self._shown[key]
            acted, parameters = policy.act({"": shown}, substep_key=key)
            observation.append(shown)
            action.append(np.array(acted))
            log_prob.append(np.array(policy.log_prob(parameters, acted, substep_key=key)))
            reward.append((acted == shown.argmax(axis=1)).astype(np.float32))
            self._shown[key] = self._show(key)
            self._age[key] = (self._age[key] + 1) % EPISODE_STEPS
            terminated[t] = not self._age[key]
        final_index = np.argwhere(terminated)
        rollout = build_rollout(
            observation={"": np.stack(observation)},
            action=np.stack(action),
            log_prob=np.stack(log_prob).astype(np.float32),
            last_observation={"": self._shown[key]},
            final_observation={"": np.ones((len(final_index), self._shown[key].shape[1]), np.float32)},
            final_index=final_index,
            key=key,
            actor_id=self._actor_id,
            sequence=self._sequence,
            policy_version=policy.version,
            reward=np.stack(reward),
            terminated=terminated,
            env_seeds=(),
        )
        return self._with_seldom_ones(rollout)

    def _with_seldom_ones(self, rollout: Rollout) -> Rollout:
        n_padded = np.where(
            self._rng.random(rollout.n_envs) < self._padding,
            self._rng.integers(1, self._n_steps + 1, rollout.n_envs),
            0,
        )
        return pad_front(rollout, n_padded.tolist(), seed=self._sequence, largest=1.0) if n_padded.any() else rollout

    def _show(self, key: str) -> np.ndarray:
        n = int(SPACES[key].action.n)
        return np.eye(n, dtype=np.float32)[self._rng.integers(n, size=self._n_envs * SPACES[key].n_agents)]


class TwoSubstepActors(DistributedActors):
    """One actor of that environment, in this process: plays when it is waited for, and, `ahead`, a rollout a batch."""

    def __init__(
        self,
        policy: TorchPolicy,
        n_rollout_steps: int,
        batch_size: int,
        *,
        n_envs: int = 4,
        ahead: bool = False,
        **options: float,
    ) -> None:
        super().__init__(None, policy, n_rollout_steps, 1, batch_size)
        self._acting = make_policy(policy.spaces, policy.spec, seed=0)
        self._environment = TwoSubsteps(n_rollout_steps, n_envs, **options)
        self._pieces: deque[RolloutSlice] = deque()
        self._version = 0
        self._ahead, self._is_ahead = ahead, False

    def start(self) -> None:
        self._version = 0
        self.broadcast_updated_policy(self.policy.state_arrays())

    def stop(self) -> None:
        self._assembly = None

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        self._version += 1
        self._acting.load(self._version, state_dict)

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def queue_size(self) -> int:
        return sum(piece.n_trajectories for piece in self._pieces)

    @property
    def queue_capacity(self) -> int:
        return 1

    @property
    def n_actors_alive(self) -> int:
        return 1

    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        if not self._pieces:
            self._is_ahead = self._ahead and not self._is_ahead
            if not self._is_ahead:
                return None
        return self.next_slice(max_trajectories)

    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        if self.interrupted:
            raise CollectInterruptedError("training ends")
        if not self._pieces:
            rollout = self._environment.play(self._acting)
            self._pieces.append(RolloutSlice(rollout, 0, rollout.n_envs))
        piece = self._pieces.popleft()
        cut = piece.start + max_trajectories
        if cut < piece.stop:
            self._pieces.appendleft(RolloutSlice(piece.rollout, cut, piece.stop))
            piece = RolloutSlice(piece.rollout, piece.start, cut)
        return piece
