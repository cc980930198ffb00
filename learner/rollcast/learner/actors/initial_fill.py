"""Fills a replay buffer before training with demonstrations, or with rollouts of a sampling policy."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.initial_episodes import InitialEpisodes
from rollcast.learner.algorithms.observation_statistics import RolloutObserver
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.demonstrations import load_demonstrations
from rollcast.services.errors import CollectTimeoutError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.rollouts.rollouts import Rollout

# The source of a buffer's first entries: None plays uniformly at random; a state_dict plays with that policy; a path is
# a file of rollouts, and a callable returns rollouts.
InitialSampling: TypeAlias = PolicyState | Path | Callable[[], Iterable[Rollout]] | None


class InitialFill:
    """Fills a replay buffer, and keeps separate statistics of the episodes in its first entries. Used by one thread.

    Attributes:
        statistics: The statistics of demonstrations, and of episodes that the sampling policy played at least in part.

    Args:
        actors: The actors.
        policy: The policy in training; the actors use another one while the buffer is filled.
    """

    def __init__(self, actors: DistributedActors, policy: TorchPolicy) -> None:
        self._actors = actors
        self._policy = policy
        self._observe = RolloutObserver(policy)
        self._episodes = InitialEpisodes()
        self.statistics = EpochStatsAggregator()

    def restart(self) -> None:
        """Records that the actors were restarted, so that their policy versions begin from 1."""
        self._episodes = InitialEpisodes()

    def fill(self, buffer: ReplayBuffer, sampling: InitialSampling, n_entries: int) -> None:
        """Fills a buffer until it has enough entries, or is full.

        Loads all demonstrations, but only into an empty buffer. If they are too few, the actors then play
        uniformly at random.

        Args:
            buffer: The buffer.
            sampling: The source of the entries.
            n_entries: The necessary number of entries.

        Raises:
            ConfigurationError: The demonstrations cannot be opened, or are empty.
            RecordingError: The file of demonstrations is damaged. The buffer then has no demonstrations.
            SpacesMismatchError: The demonstrations were recorded with other spaces.
            CollectTimeoutError: No entry arrived within the actors' `collect_timeout_s`.
        """
        if isinstance(sampling, Path) or callable(sampling):
            if not buffer.size:
                self._load(buffer, sampling)
            sampling = None
        if buffer.size < n_entries and not buffer.is_full:
            self._play(buffer, sampling, n_entries)

    def insert(self, buffer: ReplayBuffer, piece: RolloutSlice) -> int:
        """Inserts trajectories, adds their episodes to the statistics, and returns the number of new entries."""
        rollout = piece.to_rollout()
        n_entries = buffer.insert(rollout)
        self._observe(rollout)
        initial, others = self._episodes.split(piece)
        is_initial = self._episodes.is_initial(rollout)
        self.statistics.add_all(initial, rollout.events if is_initial else ())
        self._actors.get_epoch_stats_aggregator().add_all(others, () if is_initial else rollout.events)
        return n_entries

    def _load(self, buffer: ReplayBuffer, demonstrations: Path | Callable[[], Iterable[Rollout]]) -> None:
        if isinstance(demonstrations, Path):
            rollouts: Iterable[Rollout] = read_rollouts(demonstrations, self._policy.spaces)
            source = str(demonstrations)
        else:
            rollouts, source = demonstrations(), "the callable given as initial_sampling_policy"
        self.statistics.add_all(load_demonstrations(buffer, rollouts, source=source, observe=self._observe))

    def _play(self, buffer: ReplayBuffer, sampling_policy: PolicyState | None, n_entries: int) -> None:
        """Makes the actors play with the sampling policy, then publishes the policy in training."""
        learning = self._policy.state_arrays()
        self._actors.broadcast_updated_policy(self._uniform() if sampling_policy is None else sampling_policy)
        self._episodes.begin(self._actors.policy_version)
        self._insert_until(buffer, n_entries)
        self._actors.broadcast_updated_policy(learning)
        self._episodes.end(self._actors.policy_version)

    def _uniform(self) -> PolicyState:
        """Returns the policy's state with uniform exploration, without changing the policy."""
        self._policy.set_uniform_exploration(True)
        state = self._policy.state_arrays()
        self._policy.set_uniform_exploration(False)
        return state

    def _insert_until(self, buffer: ReplayBuffer, n_entries: int) -> None:
        progressed = time.monotonic()
        while buffer.size < n_entries and not buffer.is_full:
            piece = self._actors.next_slice(1)
            # Rollouts that were played before, with the policy in training, are not part of the initial fill.
            if self._episodes.is_initial(piece.rollout) and self.insert(buffer, piece):
                progressed = time.monotonic()
            elif time.monotonic() - progressed > self._actors.collect_timeout_s:
                raise CollectTimeoutError(
                    f"no entry for {self._actors.collect_timeout_s:g} s: the replay buffer lacks "
                    f"{n_entries - buffer.size} of {n_entries}, although rollouts arrive; expected rollouts of the "
                    f"sampling policy, version {self._actors.policy_version}; check that workers load new policies, "
                    "and that rollouts have transitions"
                )
