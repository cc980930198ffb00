"""Batches from a replay buffer, for off-policy algorithms."""

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from actor.policies.torch_policy import TorchPolicy
from learner.actors.base import DistributedActors
from learner.batch import Batch
from learner.experience import Experience, ExperienceSource
from learner.replay.batches import to_batch
from learner.replay.buffer import ReplayBuffer
from services.errors import CollectInterruptedError, InvalidInputError, NotReadyError
from services.rollouts import EpisodeStatistics, Rollout

# Larger rollouts enter the buffer in pieces of so many trajectories: the limiter's band is as wide as a piece.
MAX_TRAJECTORIES = 16

# How often a trainer that waits for the limiter looks whether it is to stop.
_LOOK_S = 0.25


@dataclass(slots=True)
class _Arrivals:
    """What has come from the actors since the last batch."""

    env_steps: int = 0
    episodes: list[EpisodeStatistics] = field(default_factory=list)
    policy_lag: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = field(default_factory=list)


class ReplayedExperience(ExperienceSource):
    """Puts what the actors play into a buffer, as far as its rate limiter lets it, and draws batches.

    The limiter decides who goes first: while it lets nothing be drawn, the trainer waits for rollouts; while it lets
    nothing in, rollouts stay in the queue, and the actors wait. Until the buffer holds its minimum, actors act
    uniformly at random.

    Args:
        actors: Who plays.
        buffer: Where it is kept; other threads may use it, too.
        policy: The policy that is cast; told when to stop acting at random.
        batch_size: B, entries in a batch.
    """

    def __init__(
        self, actors: DistributedActors, buffer: ReplayBuffer, *, policy: TorchPolicy, batch_size: int
    ) -> None:
        super().__init__(actors)
        self.buffer = buffer
        self._policy = policy
        self._batch_size = batch_size
        self._refused: Rollout | None = None
        self._arrivals = _Arrivals()

    def start(self) -> None:
        """Starts the actors, acting at random while the buffer is being filled."""
        if self.buffer.size == 0:
            self._policy.set_uniform_exploration(True)
        self.actors.start()

    def next(self, learner_device: str) -> Experience:
        """Takes in what has come, and draws a batch."""
        started = time.perf_counter()
        while self._refused is None or self._insert(self._refused):
            piece = self.actors.poll_slice(MAX_TRAJECTORIES)
            if piece is None:
                break
            self._insert(piece.to_rollout())
        while (batch := self._draw(learner_device)) is None:
            if self.actors.interrupted:
                raise CollectInterruptedError("collecting was interrupted: training is to end")
            # The limiter never refuses both sides; but others who draw from the buffer may have taken our turn.
            rollout = self._refused or self.actors.next_slice(MAX_TRAJECTORIES).to_rollout()
            self._insert(rollout, timeout_s=_LOOK_S)
        self._policy.set_uniform_exploration(False)
        arrivals, self._arrivals = self._arrivals, _Arrivals()
        return Experience(
            batch=batch,
            env_steps=arrivals.env_steps,
            episodes=tuple(arrivals.episodes),
            policy_lag=np.concatenate(arrivals.policy_lag) if arrivals.policy_lag else np.zeros(0, np.int64),
            waited_s=time.perf_counter() - started,
        )

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Updates the priorities of the entries of a batch."""
        if priorities is not None and batch.keys is not None:
            self.buffer.update_priorities(batch.keys, priorities.detach().cpu().numpy())

    def _draw(self, learner_device: str) -> Batch | None:
        """A batch; None while the buffer holds too little, or its limiter lets nothing out."""
        try:
            sample = self.buffer.sample(self._batch_size)
        except (InvalidInputError, NotReadyError):
            return None
        return to_batch(sample, torch.device(learner_device))

    def _insert(self, rollout: Rollout, *, timeout_s: float = 0.0) -> bool:
        """Puts a rollout into the buffer, or aside where the limiter refuses it; says whether it is in."""
        try:
            self.buffer.insert(rollout, timeout_s=timeout_s)
        except NotReadyError:
            self._refused = rollout
            return False
        self._refused = None
        self._arrivals.env_steps += rollout.n_env_steps
        self._arrivals.episodes += rollout.episodes
        lag = max(0, self.actors.policy_version - rollout.policy_version)
        self._arrivals.policy_lag.append(np.full(rollout.n_envs, lag, np.int64))
        return True
