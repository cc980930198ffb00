"""Distributed workers with a replay buffer: any kind of distributed actors, and where their rollouts go."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import torch

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.reductions import Statistic
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.initial_episodes import InitialEpisodes
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.batch import Batch
from rollcast.learner.ingest.queue import RolloutSlice
from rollcast.learner.replay.batches import to_batch
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.demonstrations import load_demonstrations
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.errors import CollectTimeoutError, ConfigurationError, NotReadyError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.rollouts.rollouts import Rollout

# What fills a buffer: None acts at random, a state_dict plays; a file of rollouts, or what returns some, is loaded.
InitialSampling: TypeAlias = PolicyState | Path | Callable[[], Iterable[Rollout]] | None


class MakeWorkers(Protocol):
    """Makes distributed actors of some kind, not started."""

    def __call__(
        self,
        env_factory: EnvFactory,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        *,
        actor_env_seeds: Sequence[int] | None,
    ) -> DistributedActors:
        """Makes them."""


class BaseDistributedWorkersWithBuffer:
    """Workers run rollouts by themselves; `collect_rollouts` puts them into the buffer, `sample_batch` draws from it.

        with workers:                                           # start ... stop
            workers.init_replay_buffer(None, 1000, seed)
            while training:
                workers.collect_rollouts()
                batch = workers.sample_batch("cpu")
                algorithm.update(batch, progress=...)
                workers.broadcast_updated_policy(algorithm.policy_state())

    Composition, not another hierarchy: the workers are any `DistributedActors`, the buffer is a `ReplayBuffer`. All
    methods belong to one thread; the buffer itself may be used by others.

    Args:
        env_factory: Makes one environment.
        worker_policy: The policy to sample actions from.
        n_rollout_steps: T, the steps in a rollout.
        n_workers: How many workers.
        batch_size: B, the entries in a batch.
        rollouts_per_iteration: Rollouts (trajectories) that enter the buffer with each `collect_rollouts`.
        initial_sampling_policy: What the buffer is filled with: None samples uniformly from the action space; a
            state_dict plays with that; a path is a file of demonstrations, and a callable returns them. Where they are
            fewer than `initial_buffer_size`, uniform sampling follows.
        replay_buffer_size: Entries the buffer holds at most.
        initial_buffer_size: Entries `start` fills it with, or fewer where it is full before, because short episodes
            take more room; 0: none, `init_replay_buffer` is called by hand.
        split_rollouts_into_transitions: True: an entry is one step, a batch `[1, B, ...]`. False: an entry is a whole
            rollout, a batch `[T, B, ...]`.
        env_instance_seeds: A seed a worker for its environments; None: derived.
        replay_buffer_seed: Of what is drawn.
        make_workers: Which kind of workers.
        discount: gamma, for n-step folding.
        replay: Further settings of the buffer; what is given above wins.
        learner_device: Where the buffer's columns lie with the device `learner` of those settings.

    Raises:
        ConfigurationError: A number cannot be right, the environment has several substeps, or `initial_buffer_size` is
            above `replay_buffer_size`, or below `batch_size`.
    """

    def __init__(
        self,
        env_factory: EnvFactory,
        worker_policy: TorchPolicy,
        n_rollout_steps: int,
        n_workers: int,
        batch_size: int,
        rollouts_per_iteration: int,
        initial_sampling_policy: InitialSampling,
        replay_buffer_size: int,
        initial_buffer_size: int,
        split_rollouts_into_transitions: bool,
        env_instance_seeds: Sequence[int] | None,
        replay_buffer_seed: int,
        *,
        make_workers: MakeWorkers = SubprocDistributedActors,
        discount: float = 0.99,
        replay: ReplaySettings | None = None,
        learner_device: torch.device | str = "cpu",
    ) -> None:
        if rollouts_per_iteration < 1:
            raise ConfigurationError(
                f"rollouts_per_iteration is {rollouts_per_iteration}; expected at least 1; raise it"
            )
        self._replay = (replay or ReplaySettings()).model_copy(
            update={
                "capacity": replay_buffer_size,
                "entry": "transitions" if split_rollouts_into_transitions else "rollouts",
            }
        )
        self._discount = discount
        self._learner_device = learner_device
        self._batch_size = batch_size
        self._rollouts_per_iteration = rollouts_per_iteration
        self._initial_sampling_policy = initial_sampling_policy
        self._initial_buffer_size = initial_buffer_size
        if len(worker_policy.spaces) > 1:
            raise ConfigurationError(
                f"the policy is of the substeps {list(worker_policy.spaces)}; expected one: batches are drawn of one "
                "buffer here; learn with `rollcast train`, or with ReplayedExperience and a buffer for each"
            )
        self._policy = worker_policy
        self.actors = make_workers(
            env_factory, worker_policy, n_rollout_steps, n_workers, batch_size, actor_env_seeds=env_instance_seeds
        )
        self.buffer = self._make_buffer(replay_buffer_seed)
        if initial_buffer_size:
            self._check_initial_size(initial_buffer_size)
        # Of what the sampling policy played, all of it or its beginning.
        self.initial_statistics = EpochStatsAggregator()
        self._initial_episodes = InitialEpisodes()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the workers, and fills the buffer with `initial_buffer_size` entries if it is empty.

        Raises:
            RollcastError: Demonstrations cannot be loaded; see `init_replay_buffer`.
        """
        self.actors.start()
        self._initial_episodes = InitialEpisodes()  # versions begin anew
        if self._initial_buffer_size and self.buffer.size < self._initial_buffer_size:
            self._fill(self._initial_sampling_policy, self._initial_buffer_size)

    def stop(self) -> None:
        """Stops the workers; the buffer keeps what it has."""
        self.actors.stop()

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Casts the next version of the policy; workers take it up between two rollouts."""
        self.actors.broadcast_updated_policy(state_dict)

    def init_replay_buffer(
        self, initial_sampling_policy: InitialSampling, initial_buffer_size: int, replay_buffer_seed: int
    ) -> None:
        """Fills an emptied buffer with demonstrations, or with rollouts of the sampling policy, made by the workers.

        Args:
            initial_sampling_policy: None samples uniformly from the action space; a state_dict plays with that; a path
                is a file of demonstrations, which `rollcast record` writes, and a callable returns them. All of them
                are loaded, the oldest making room; where they are fewer than asked for, uniform sampling follows.
            initial_buffer_size: How many entries, at least; fewer where the buffer is full before, because short
                episodes take more room.
            replay_buffer_seed: Of what is drawn from now on.

        Raises:
            ConfigurationError: The size is above the buffer's, or below `batch_size`; or the demonstrations cannot be
                opened, or are none.
            RecordingError: The file of demonstrations is not whole; nothing of it is in the buffer.
            SpacesMismatchError: It was recorded with other spaces.
            CollectTimeoutError: No entry came for the workers' `collect_timeout_s`.
        """
        self._check_initial_size(initial_buffer_size)
        self.buffer = self._make_buffer(replay_buffer_seed)
        self._fill(initial_sampling_policy, initial_buffer_size)

    def collect_rollouts(self) -> tuple[int, int, float]:
        """Puts `rollouts_per_iteration` rollouts into the buffer, whichever workers made them.

        Some of the first may still be the initial sampling policy's. Their episodes, and those that began under it, are
        in `initial_statistics`.

        Returns:
            The queue's size before and after, and the seconds spent dequeuing.

        Raises:
            NotReadyError: The buffer holds fewer than `batch_size` entries: it has not been filled.
            CollectTimeoutError: No rollouts came.
        """
        if self.buffer.size < self._batch_size:
            raise NotReadyError(
                f"the replay buffer holds {self.buffer.size} entries, fewer than batch_size {self._batch_size}: call "
                "init_replay_buffer first"
            )
        started, before = time.perf_counter(), self.actors.queue_size
        n_missing = self._rollouts_per_iteration
        while n_missing > 0:
            piece = self.actors.next_slice(n_missing)
            self._insert(piece)
            n_missing -= piece.n_trajectories
        return before, self.actors.queue_size, time.perf_counter() - started

    def sample_batch(self, learner_device: str) -> Batch:
        """Draws a batch; float32 rewards, boolean terminations, all on the device.

        Raises:
            InvalidInputError: The buffer holds fewer entries than `batch_size`.
        """
        return to_batch(self.buffer.sample(self._batch_size), torch.device(learner_device))

    def get_epoch_stats_aggregator(self) -> EpochStatsAggregator:
        """The statistics of the epoch so far, those of the initial sampling policy not among them."""
        return self.actors.get_epoch_stats_aggregator()

    def get_stats_value(
        self, event: Callable[..., Any] | str, level: LogStatsLevel, name: str | None = None
    ) -> Statistic | dict[str, Statistic]:
        """One value of the epoch's statistics; see `DistributedActors.get_stats_value`."""
        return self.actors.get_stats_value(event, level, name)

    def _fill(self, sampling: InitialSampling, n_entries: int) -> None:
        if isinstance(sampling, Path) or callable(sampling):
            if not self.buffer.size:
                self._load(sampling)
            sampling = None
        if self.buffer.size < n_entries and not self.buffer.is_full:
            self._play(sampling, n_entries)

    def _load(self, demonstrations: Path | Callable[[], Iterable[Rollout]]) -> None:
        if isinstance(demonstrations, Path):
            rollouts: Iterable[Rollout] = read_rollouts(demonstrations, self._policy.spaces)
            source = str(demonstrations)
        else:
            rollouts, source = demonstrations(), "the callable given as initial_sampling_policy"
        self.initial_statistics.add_all(load_demonstrations(self.buffer, rollouts, source=source).episodes)

    def _play(self, sampling_policy: PolicyState | None, n_entries: int) -> None:
        learning = self._policy.state_arrays()
        if sampling_policy is None:
            self._policy.set_uniform_exploration(True)
            sampling_policy = self._policy.state_arrays()
            self._policy.set_uniform_exploration(False)
        self.actors.broadcast_updated_policy(sampling_policy)
        self._initial_episodes.begin(self.actors.policy_version)
        progressed = time.monotonic()
        while self.buffer.size < n_entries and not self.buffer.is_full:
            piece = self.actors.next_slice(1)
            # what was played before, with the policy that is to learn, is no part of the initial fill
            if self._initial_episodes.is_initial(piece.rollout) and self._insert(piece):
                progressed = time.monotonic()
            elif time.monotonic() - progressed > self.actors.collect_timeout_s:
                raise CollectTimeoutError(
                    f"no entry for {self.actors.collect_timeout_s:g} s: the replay buffer lacks "
                    f"{n_entries - self.buffer.size} of {n_entries}, though rollouts come; expected some of the "
                    f"sampling policy, version {self.actors.policy_version}; look whether workers take up policies, "
                    "and whether rollouts have transitions"
                )
        self.actors.broadcast_updated_policy(learning)
        self._initial_episodes.end(self.actors.policy_version)

    def _insert(self, piece: RolloutSlice) -> int:
        """Puts trajectories into the buffer, and their episodes into the right statistics; returns the entries."""
        rollout = piece.to_rollout()
        n_entries = self.buffer.insert(rollout)
        initial, others = self._initial_episodes.split(piece)
        is_initial = self._initial_episodes.is_initial(rollout)
        self.initial_statistics.add_all(initial, rollout.events if is_initial else ())
        self.actors.get_epoch_stats_aggregator().add_all(others, () if is_initial else rollout.events)
        return n_entries

    def _make_buffer(self, seed: int) -> ReplayBuffer:
        return ReplayBuffer(
            self._replay,
            self._policy.spaces,
            n_rollout_steps=self.actors.n_rollout_steps,
            batch_size=self._batch_size,
            discount=self._discount,
            seed=seed,
            learner_device=self._learner_device,
        )

    def _check_initial_size(self, n_entries: int) -> None:
        if not self._batch_size <= n_entries <= self._replay.capacity:
            raise ConfigurationError(
                f"initial_buffer_size is {n_entries}; expected from batch_size {self._batch_size} to "
                f"replay_buffer_size {self._replay.capacity}"
            )
