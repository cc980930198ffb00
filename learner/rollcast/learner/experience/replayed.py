"""Makes batches from replay buffers, for off-policy algorithms."""

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.observation_statistics import RolloutObserver
from rollcast.learner.algorithms.schedules import Schedule
from rollcast.learner.batch import Batch
from rollcast.learner.devices.copier import Copier, Fence, make_copier
from rollcast.learner.experience.experience import Experience, ExperienceSource, SaveExperience
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.ranks.empty_batch import empty_batch
from rollcast.learner.replay.batches import SampleBatcher
from rollcast.learner.replay.info import BufferInfo
from rollcast.learner.replay.parts import check_replayable
from rollcast.learner.replay.served import replay_status
from rollcast.learner.replay.substeps import SubstepBuffers
from rollcast.learner.waiting import WaitLog
from rollcast.learner.writers import metric_names
from rollcast.learner.writers.metric_names import Metric
from rollcast.services.errors import CollectInterruptedError, CollectTimeoutError, InvalidInputError, NotReadyError
from rollcast.services.replay.replay import ACTORS, TRAINER, ReplayStatus, joint_replay_status
from rollcast.services.rollouts.rollouts import EpisodeStatistics

# Larger rollouts are inserted in slices of this many trajectories: a limiter's band must be as wide as a slice.
MAX_TRAJECTORIES = 16

# The interval at which a trainer that waits for a limiter checks whether it has to stop.
_LOOK_S = 0.25


@dataclass(slots=True)
class _Arrivals:
    """The steps and episodes from the actors since the last batch."""

    env_steps: int = 0
    episodes: list[EpisodeStatistics] = field(default_factory=list)
    data_age_s: list[float] = field(default_factory=list)
    policy_lag: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _NewPriorities:
    """Priorities that are being copied from the device.

    Attributes:
        key: The substep of the buffer.
        keys: The entries' keys.
        priorities: The priorities in main memory; complete after a wait for `copied`.
        copied: The fence after the copy.
    """

    key: str
    keys: NDArray[np.int64]
    priorities: Tensor
    copied: Fence


class ReplayedExperience(ExperienceSource):
    """A source that inserts rollouts into replay buffers, one per substep, and draws batches from these buffers.

    Each buffer's rate limiter decides whether the buffer takes a rollout or gives a batch. While a buffer gives no
    batch, the trainer waits for rollouts. While it takes no rollout, rollouts stay in the queue and the actors wait.
    `replay_status` lists the waits, with reasons and times. The actors' `waiting` contains the trainer's wait, and long
    waits are logged. Until every buffer has its minimum size, actors act uniformly at random.

    No batch is drawn ahead of its update: a draw uses the priorities from the previous batch, and all inserted entries.

    Batches are drawn from the buffers in turn; a buffer whose limiter gives no batch is skipped. No wait is endless: a
    buffer that refuses the next rollout gives batches, so the trainer waits only if the buffers take every rollout.

    Attributes:
        buffers: See Args.

    Args:
        actors: The actors.
        buffers: The buffers by substep key; other threads may use them, too.
        policy: The published policy; it acts at random until the buffers are filled.
        batch_size: B, the entries in a batch.
        beta: The share of the bias that importance weights correct, by the progress of training; None: the buffers'
            setting.

    Raises:
        ConfigurationError: A buffer does not keep a column of the policy's rollouts; see `check_replayable`.
    """

    def __init__(
        self,
        actors: DistributedActors,
        buffers: SubstepBuffers,
        *,
        policy: TorchPolicy,
        batch_size: int,
        beta: Schedule | None = None,
    ) -> None:
        super().__init__(actors)
        for buffer in buffers.values():
            check_replayable(
                policy.spec, entry=buffer.entry, state_size=buffer.state_size, frame_stack=buffer.frame_stack
            )
        self.buffers = buffers
        # The buffers in the order of their turns, next one first.
        self._turns = deque(buffers)
        self._max_trajectories = min(buffer.max_trajectories for buffer in buffers.values())
        # The buffers that have not given their first batch yet.
        self._unfilled: set[str] = set()
        self._filling = WaitLog()
        self._started_at = 0.0
        self._policy = policy
        self._observe = RolloutObserver(policy)
        self._batch_size = batch_size
        self._beta = beta
        self._beta_now = math.nan
        self._refused: RolloutSlice | None = None
        self._refused_at = 0.0
        self._refusals = WaitLog()
        self._insert_wait_s = self._sample_wait_s = 0.0
        self._arrivals = _Arrivals()
        # For the device of the batches, which is known at the first call of `next`.
        self._copier: Copier | None = None
        self._batcher: SampleBatcher | None = None
        self._new_priorities: _NewPriorities | None = None

    def start(self) -> None:
        """Starts the actors. Actors act at random until the buffers are filled, unless demonstrations filled them."""
        self._begin()
        self._started_at = time.monotonic()
        self.actors.start()

    def begin_save(self) -> SaveExperience:
        """Takes a snapshot of the buffers, with their limiters, priorities and generators."""
        self._update_priorities()
        snapshots = [buffer.checkpoint.begin() for buffer in self.buffers.values()]

        def save(directory: Path, previous: Path | None, rest: Callable[[], None]) -> Mapping[Path, str]:
            digests: dict[Path, str] = {}
            try:
                for i, snapshot in enumerate(snapshots):
                    before = None if previous is None else _path(previous, i)
                    digests |= snapshot.write(_path(directory, i), before, rest=rest)
            finally:
                for snapshot in snapshots:
                    snapshot.end()
            return digests

        return save

    def load(self, directory: Path) -> None:
        """Loads the buffers and their limiters, so no burst of updates or insertions follows."""
        for i, buffer in enumerate(self.buffers.values()):
            buffer.checkpoint.load(_path(directory, i))

    def renew(self) -> None:
        """See `ExperienceSource.renew`. Drops a refused rollout if its actor has restarted."""
        self._begin()
        if self.actors.renew():
            self._drop_played()

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        """Inserts the rollouts that have arrived, and draws a batch."""
        started = time.perf_counter()
        self._update_priorities()
        if self._beta is not None:
            self._beta_now = self._beta(progress)
            for buffer in self.buffers.values():
                buffer.set_beta(self._beta_now)
        self._take_in()
        batch = self._draw(learner_device)
        if batch is None:
            try:
                batch = self._await_batch(learner_device)
            except BaseException:
                for buffer in self.buffers.values():
                    buffer.stop_waiting(TRAINER)  # others that draw from it are not to wait for our turn
                raise
        self._unfilled -= batch.substeps.keys()
        self._policy.set_uniform_exploration(bool(self._unfilled))
        if self._unfilled:
            seldom = [key for key in self.buffers if key in self._unfilled]
            self._filling.note(
                f"the first batch of the substeps {seldom}: until then all actors act at random",
                time.monotonic() - self._started_at,
            )
        arrivals, self._arrivals = self._arrivals, _Arrivals()
        return Experience(
            batch=batch,
            env_steps=arrivals.env_steps,
            n_episodes=len(arrivals.episodes),
            returns=tuple(episode.episode_return for episode in arrivals.episodes),
            policy_lag=np.concatenate(arrivals.policy_lag) if arrivals.policy_lag else np.zeros(0, np.int64),
            waited_s=time.perf_counter() - started,
            data_age_s=tuple(arrivals.data_age_s),
        )

    def learnt(self, batch: Batch, priorities: Tensor | None) -> None:
        """Updates the priorities of a batch's entries: at once, or before the next draw if they are on a device."""
        if priorities is None or batch.keys is None:
            return
        (key,) = batch.substeps
        priorities = priorities.detach()
        if self._copier is None or self._copier.shares_memory:
            self.buffers[key].update_priorities(batch.keys, priorities.numpy())
            return
        priorities = priorities.contiguous()
        host = self._copier.host_memory(priorities.numel() * priorities.element_size()).view(priorities.dtype)
        self._copier.send(priorities, to=host)
        self._new_priorities = _NewPriorities(key, batch.keys, host, self._copier.fence())

    def _update_priorities(self) -> None:
        """Waits for the priorities of the last batch, if they are being copied, and sets them."""
        with self.moving:
            new, self._new_priorities = self._new_priorities, None
            if new is not None:
                new.copied.wait()
                self.buffers[new.key].update_priorities(new.keys, new.priorities.numpy())

    def empty_batch(self, device: str) -> Batch:
        """See `ExperienceSource.empty_batch`. Supports one substep."""
        (buffer,) = self.buffers.values()
        return empty_batch(
            self._policy,
            n_steps=buffer.n_sampled_steps,
            batch_size=self._batch_size,
            device=device,
            from_replay=buffer.entry == "transitions",
            burn_in=buffer.burn_in,
        )

    def replay_status(self) -> ReplayStatus:
        """Returns the joint status of the buffers, with the waits for the buffers."""
        return joint_replay_status({key: replay_status(buffer) for key, buffer in self.buffers.items()})

    def metrics(self) -> dict[str, float]:
        """Returns the buffers' counters, the limiters' bands, and each side's total wait.

        With several substeps, each buffer has its own values, such as `replay/KEY/size`.
        """
        held_back_s = time.monotonic() - self._refused_at if self._refused is not None else 0.0
        metrics = {
            metric_names.REPLAY_INSERT_WAIT_S.tag: self._insert_wait_s + held_back_s,
            metric_names.REPLAY_SAMPLE_WAIT_S.tag: self._sample_wait_s,
        }
        metrics |= buffer_metrics(self.buffers)
        if self._beta is not None:
            metrics[metric_names.REPLAY_BETA.tag] = self._beta_now
        return metrics

    def _drop_played(self) -> None:
        """Drops rollouts of actors that have since restarted."""
        self._refused = None

    def _take_in(self) -> None:
        """Inserts the rollouts that have arrived, as far as the limiters allow; never waits.

        Takes at most the rollouts that were present at the start: the queue, and up to two in transit for each actor.
        Otherwise actors faster than this thread would keep it from training.
        """
        for _ in range(self.actors.queue_size + 2 * self.actors.n_actors_alive + 1):
            if self._refused is not None and not self._insert(self._refused):
                break
            piece = self.actors.poll_slice(self._max_trajectories)
            if piece is None:
                break
            self._insert(piece)

    def _next_slice(self) -> RolloutSlice:
        """Waits for the next trajectories to insert."""
        return self.actors.next_slice(self._max_trajectories)

    def _begin(self) -> None:
        """Notes which buffers are not filled yet, and starts the turns with the first buffer."""
        infos = {key: buffer.info() for key, buffer in self.buffers.items()}
        self._unfilled = {key for key, info in infos.items() if info.size < info.limiter.enough}
        self._policy.set_uniform_exploration(bool(self._unfilled))
        self._turns = deque(self.buffers)

    def _await_batch(self, learner_device: str) -> Batch:
        """Inserts rollouts until a buffer gives a batch; `waiting` names the reason for the wait.

        Raises:
            CollectTimeoutError: For `collect_timeout_s`, the buffers took no entry and gave no batch.
        """
        began = progressed = time.monotonic()
        n_inserted = self._n_inserted()
        with self.actors.waiting.waiting_for("the replay buffer"):
            while (batch := self._draw(learner_device)) is None:
                if self.actors.interrupted:
                    raise CollectInterruptedError("collecting was interrupted, because training ends")
                # A limiter never refuses both sides, but other callers may have drawn the batch meanwhile.
                piece = self._refused or self._next_slice()
                self._insert(piece, timeout_s=_LOOK_S)
                if time.monotonic() >= self.actors.wait_until:
                    raise NotReadyError("the replay buffer has no batch yet; ask again later")
                now, before, n_inserted = time.monotonic(), n_inserted, self._n_inserted()
                if n_inserted != before:
                    progressed = now
                elif now - progressed > self.actors.collect_timeout_s:
                    reason, _ = self.actors.waiting.current()
                    raise CollectTimeoutError(
                        f"the replay buffer has neither taken an entry nor given a batch for {now - progressed:.0f} s; "
                        f"the learner waits for {reason}; expected one of these; check --replay.samples-per-insert, "
                        "the other readers of the buffer, and whether rollouts have transitions"
                    )
        self._sample_wait_s += time.monotonic() - began
        return batch

    def _n_inserted(self) -> int:
        return sum(buffer.info().inserted for buffer in self.buffers.values())

    def _draw(self, learner_device: str) -> Batch | None:
        """Draws the next batch; returns None if the buffers have too few entries, or their limiters give no batch."""
        reasons = {}
        for key in tuple(self._turns):
            buffer = self.buffers[key]
            self._turns.rotate(-1)
            try:
                sample = buffer.sample(self._batch_size, who=TRAINER)
            except (InvalidInputError, NotReadyError) as error:
                if isinstance(error, InvalidInputError) and buffer.is_full:
                    raise  # a full buffer will never hold more
                wait = buffer.wait_of(TRAINER)
                reasons[key] = wait.reason if wait is not None else str(error)
                continue
            for other in self.buffers.keys() - {key}:
                self.buffers[other].stop_waiting(TRAINER)
            if self._copier is None:
                self._copier = make_copier(learner_device)
                self._batcher = SampleBatcher(self._copier)
            assert self._batcher is not None
            batch = self._batcher.make(sample)
            if self._beta is not None:
                batch = dataclasses.replace(batch, largest_weight=buffer.info().largest_weight)
            return batch
        what = "; ".join(self._named(key, reason) for key, reason in reasons.items())
        self.actors.waiting.explain(f"the replay buffer: {what}")
        return None

    def _insert(self, piece: RolloutSlice, *, timeout_s: float = 0.0) -> bool:
        """Inserts a rollout, or keeps it for later if the limiter refuses it; returns whether it was inserted."""
        rollout = piece.to_rollout()
        key = rollout.substep_key
        buffer = self.buffers[key]
        try:
            with self.moving:
                buffer.insert(rollout, timeout_s=timeout_s, who=ACTORS)
                self._observe(rollout)
                self.actors.covered([piece.name])
        except NotReadyError:
            if self._refused is None:
                self._refused, self._refused_at = piece, time.monotonic()
            wait = buffer.wait_of(ACTORS)
            if wait is not None:
                reason = self._named(key, wait.reason)
                self._refusals.note(f"the replay buffer to take rollouts in: {reason}", wait.seconds)
            return False
        if self._refused is not None:
            self._refused = None
            self._insert_wait_s += time.monotonic() - self._refused_at
        if piece.arrived_at is not None:
            self._arrivals.data_age_s.append(time.monotonic() - piece.arrived_at)
        self._arrivals.env_steps += rollout.n_env_steps
        self._arrivals.episodes += rollout.episodes
        self.actors.get_epoch_stats_aggregator().add_all(rollout.episodes, rollout.events)
        lag = max(0, self.actors.policy_version - rollout.policy_version)
        self._arrivals.policy_lag.append(np.full(rollout.n_envs, lag, np.int64))
        return True

    def _named(self, key: str, reason: str) -> str:
        return f"{key}: {reason}" if len(self.buffers) > 1 else reason


def _path(checkpoint: Path, i: int) -> Path:
    """Returns the folder of the i-th substep's buffer. It is numbered, because a key may not be a valid folder name."""
    return checkpoint / "replay" / f"substep{i}"


def buffer_metrics(buffers: SubstepBuffers) -> dict[str, float]:
    """Returns the counters of buffers by tag; with several substeps `replay/KEY/size`. Thread-safe."""
    several = len(buffers) > 1
    return {
        metric.of(key) if several else metric.tag: value
        for key, buffer in buffers.items()
        for metric, value in _counters(buffer.info()).items()
    }


def _counters(info: BufferInfo) -> dict[Metric, float]:
    """Returns the metrics of one buffer."""
    limiter = info.limiter
    counters: dict[Metric, float] = {
        metric_names.REPLAY_SIZE: info.size,
        metric_names.REPLAY_INSERTS: info.inserted,
        metric_names.REPLAY_SAMPLES: info.sampled,
        metric_names.REPLAY_SAMPLES_PER_INSERT: info.sampled / max(info.inserted, 1),
        metric_names.REPLAY_WAITING: len(limiter.waiting),
    }
    if math.isfinite(limiter.max_diff):
        counters |= {
            metric_names.REPLAY_DIFFERENCE: limiter.difference,
            metric_names.REPLAY_MIN_DIFF: limiter.min_diff,
            metric_names.REPLAY_MAX_DIFF: limiter.max_diff,
        }
    return counters
