"""Combines distributed actors of any kind with a replay buffer for their rollouts."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.reductions import Statistic
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.initial_fill import InitialFill, InitialSampling
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.batch import Batch
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.replay.batches import SampleBatcher
from rollcast.learner.replay.buffer import ReplayBuffer
from rollcast.learner.replay.parts import check_replayable
from rollcast.learner.replay.settings import ReplaySettings
from rollcast.services.errors import ConfigurationError, NotReadyError
from rollcast.services.policies.policies import PolicyState


class MakeWorkers(Protocol):
    """Makes distributed actors of one kind; a class of actors is such a callable."""

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
        """Returns actors with these arguments."""


class BaseDistributedWorkersWithBuffer:
    """Workers that play independently, with a buffer: `collect_rollouts` fills it, `sample_batch` samples it.

        with workers:                                           # start ... stop
            workers.init_replay_buffer(None, 1000, seed)
            while training:
                workers.collect_rollouts()
                batch = workers.sample_batch("cpu")
                algorithm.update(batch, progress=...)
                workers.broadcast_updated_policy(algorithm.policy_state())

    The workers are any `DistributedActors`, and the buffer is a `ReplayBuffer`. One thread calls all methods; other
    threads may use the buffer.

    Attributes:
        actors: The workers.
        buffer: The replay buffer; `init_replay_buffer` replaces it.

    Args:
        env_factory: Makes one environment.
        worker_policy: The policy to sample actions from.
        n_rollout_steps: T, the steps in a rollout.
        n_workers: The number of workers.
        batch_size: B, the entries in a batch.
        rollouts_per_iteration: The number of rollouts (trajectories) in each `collect_rollouts`.
        initial_sampling_policy: The source of the first entries. None samples uniformly from the action space. A
            state_dict plays with that policy. A path is a file of demonstrations, and a callable returns
            demonstrations. If these are fewer than `initial_buffer_size`, uniform sampling follows.
        replay_buffer_size: The largest number of entries.
        initial_buffer_size: The number of entries after `start`; fewer if short episodes fill the buffer before. With
            0, call `init_replay_buffer`.
        split_rollouts_into_transitions: True: an entry is one step, a batch `[1, B, ...]`. False: an entry is a whole
            rollout, a batch `[T, B, ...]`.
        env_instance_seeds: One seed per worker for its environments; None derives them.
        replay_buffer_seed: The seed of sampling.
        make_workers: Makes the workers, and so decides their kind.
        discount: gamma, for n-step folding.
        replay: Further settings of the buffer; the arguments above take precedence.
        learner_device: The device of the buffer's columns, if `replay` has the device `learner`.

    Raises:
        ConfigurationError: A number is out of range, the environment has several substeps, or the policy is recurrent
            while entries are transitions. Or `initial_buffer_size` is above `replay_buffer_size` or below `batch_size`.
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
                f"the policy has the substeps {list(worker_policy.spaces)}; expected one, because this class has one "
                "buffer; train with `rollcast train`, or with ReplayedExperience and one buffer for each substep"
            )
        spec = worker_policy.spec
        check_replayable(spec, entry=self._replay.entry, state_size=spec.state_size, frame_stack=spec.frame_stack)
        self._policy = worker_policy
        self.actors = make_workers(
            env_factory, worker_policy, n_rollout_steps, n_workers, batch_size, actor_env_seeds=env_instance_seeds
        )
        self.buffer = self._make_buffer(replay_buffer_seed)
        if initial_buffer_size:
            self._check_initial_size(initial_buffer_size)
        self._fill = InitialFill(self.actors, worker_policy)
        # By device.
        self._batchers: dict[str, SampleBatcher] = {}

    @property
    def initial_statistics(self) -> EpochStatsAggregator:
        """The statistics of demonstrations, and of episodes that the sampling policy played at least in part."""
        return self._fill.statistics

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the workers, and fills the buffer up to `initial_buffer_size` entries.

        Raises:
            RollcastError: Demonstrations cannot be loaded; see `init_replay_buffer`.
        """
        self.actors.start()
        self._fill.restart()
        if self._initial_buffer_size and self.buffer.size < self._initial_buffer_size:
            self._fill.fill(self.buffer, self._initial_sampling_policy, self._initial_buffer_size)

    def stop(self) -> None:
        """Stops the workers; the buffer keeps its entries."""
        self.actors.stop()

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Publishes the next version of the policy; workers load it between two rollouts."""
        self.actors.broadcast_updated_policy(state_dict)

    def init_replay_buffer(
        self, initial_sampling_policy: InitialSampling, initial_buffer_size: int, replay_buffer_seed: int
    ) -> None:
        """Makes an empty buffer, and fills it with demonstrations or with a sampling policy's rollouts.

        Args:
            initial_sampling_policy: None samples uniformly from the action space. A state_dict plays with that policy.
                A path is a file of demonstrations from `rollcast record`, and a callable returns demonstrations. All of
                them are loaded, and the oldest make room. If they are too few, uniform sampling follows.
            initial_buffer_size: The smallest number of entries; fewer if short episodes fill the buffer before.
            replay_buffer_seed: The seed of all later samples.

        Raises:
            ConfigurationError: The size is above the buffer's, or below `batch_size`. Or the demonstrations cannot be
                opened, or are empty.
            RecordingError: The file of demonstrations is damaged. The buffer then has no demonstrations.
            SpacesMismatchError: The demonstrations were recorded with other spaces.
            CollectTimeoutError: No entry arrived within the workers' `collect_timeout_s`.
        """
        self._check_initial_size(initial_buffer_size)
        self.buffer = self._make_buffer(replay_buffer_seed)
        self._fill.fill(self.buffer, initial_sampling_policy, initial_buffer_size)

    def collect_rollouts(self) -> tuple[int, int, float]:
        """Inserts the next `rollouts_per_iteration` rollouts into the buffer, from any workers.

        The first rollouts may still come from the sampling policy. Episodes that began under it count in
        `initial_statistics`.

        Returns:
            The queue's size before and after, and the seconds spent dequeuing.

        Raises:
            NotReadyError: The buffer has fewer than `batch_size` entries, because `init_replay_buffer` was not called.
            CollectTimeoutError: No rollouts arrived.
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
            self._fill.insert(self.buffer, piece)
            n_missing -= piece.n_trajectories
        return before, self.actors.queue_size, time.perf_counter() - started

    def sample_batch(self, learner_device: str) -> Batch:
        """Draws a batch: float32 rewards, boolean terminations, all on the device.

        Raises:
            InvalidInputError: The buffer holds fewer entries than `batch_size`.
        """
        if learner_device not in self._batchers:
            self._batchers[learner_device] = SampleBatcher(make_copier(learner_device))
        return self._batchers[learner_device].make(self.buffer.sample(self._batch_size))

    def get_epoch_stats_aggregator(self) -> EpochStatsAggregator:
        """Returns the statistics of the epoch so far, without episodes of the initial sampling policy."""
        return self.actors.get_epoch_stats_aggregator()

    def get_stats_value(
        self, event: Callable[..., Any] | str, level: LogStatsLevel, name: str | None = None
    ) -> Statistic | dict[str, Statistic]:
        """Returns one value of the epoch's statistics; see `DistributedActors.get_stats_value`."""
        return self.actors.get_stats_value(event, level, name)

    def _make_buffer(self, seed: int) -> ReplayBuffer:
        return ReplayBuffer(
            self._replay,
            self._policy.spaces,
            n_rollout_steps=self.actors.n_rollout_steps,
            batch_size=self._batch_size,
            state_size=self._policy.spec.state_size,
            discount=self._discount,
            seed=seed,
            learner_device=self._learner_device,
            frame_stack=self._policy.spec.frame_stack,
        )

    def _check_initial_size(self, n_entries: int) -> None:
        if not self._batch_size <= n_entries <= self._replay.capacity:
            raise ConfigurationError(
                f"initial_buffer_size is {n_entries}; expected from batch_size {self._batch_size} to "
                f"replay_buffer_size {self._replay.capacity}"
            )
