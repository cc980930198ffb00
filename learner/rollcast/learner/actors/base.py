"""Defines the interface of all kinds of distributed actors."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.reductions import Statistic
from rollcast.learner.batch import Batch
from rollcast.learner.batching.assembly import AssembledBatch, Assembly
from rollcast.learner.batching.assembly_times import AssemblyTimes
from rollcast.learner.batching.batcher import N_SLOTS
from rollcast.learner.devices.copier import Copier, make_copier
from rollcast.learner.queueing.queue import RolloutSlice, SliceName
from rollcast.learner.serving.evaluations import EvaluationResult, EvaluatorsInfo
from rollcast.learner.waiting import WaitMonitor, is_played, longest_rollout_s
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import ConfigurationError, NotReadyError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.version import software_version


class DistributedActors(ABC):
    """Actors that play rollouts independently. The learner collects rollouts in batches and broadcasts new policies.

        with actors:                                     # start ... stop
            while training:
                batch, before, after, seconds = actors.collect_outputs("cpu")
                algorithm.update(batch)
                actors.broadcast_updated_policy(algorithm.policy_state())

    One thread, the trainer's, calls `start`, `stop`, `collect_outputs` and `broadcast_updated_policy`. Any thread may
    read the state (`waiting`, `queue_size`, `n_actors_alive`, `status`).

    Attributes:
        env_factory: See Args.
        policy: See Args.
        n_rollout_steps: See Args.
        n_actors: See Args.
        batch_size: See Args.
        collect_timeout_s: See Args.
        waiting: The reason for the trainer's wait.
        wait_until: The time, by `time.monotonic`, at which `next_slice` and `collect_outputs` stop waiting. Collected
            trajectories are kept for the next call. Infinity by default.
        interrupted: True once `interrupt` was called.
        cancels_waits: True once `cancel_waits` was called.
        progress: The progress of training, in [0, 1]. This progress is sent with the next version, for environments
            with `set_progress`.
        batch_names: The names of the trajectories in the last batch of `collect_outputs`.
        batch_arrived_at: The arrival times of that batch's rollouts, by `time.monotonic`; empty if rollouts are not
            sent.
        resumes_in_step: True for kinds of actors that can resume a deterministic run.

    Args:
        env_factory: Makes one environment; None if the actors make their own.
        policy: The policy to sample actions from; its weights are the first published version.
        n_rollout_steps: T, the steps in a rollout.
        n_actors: The number of actors to run; 0 if actors dial in.
        batch_size: B, the trajectories in a batch.
        collect_timeout_s: The longest wait for a rollout, in seconds; see `ServingOptions`.
        deterministic: True: actors play one rollout for each batch. A rollout keeps its place in the batch even without
        transitions.

    Raises:
        ConfigurationError: A number is out of range.
    """

    resumes_in_step: ClassVar[bool] = False

    def __init__(
        self,
        env_factory: EnvFactory | None,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        *,
        collect_timeout_s: float = 600.0,
        deterministic: bool = False,
    ) -> None:
        for name, value, least in (
            ("n_rollout_steps", n_rollout_steps, 1),
            ("n_actors", n_actors, 0 if env_factory is None else 1),
            ("batch_size", batch_size, 1),
        ):
            if value < least:
                raise ConfigurationError(f"{name} is {value}; expected at least {least}")
        self.env_factory = env_factory
        self.policy = policy
        self.n_rollout_steps = n_rollout_steps
        self.n_actors = n_actors
        self.batch_size = batch_size
        self.collect_timeout_s = collect_timeout_s
        self.progress = 0.0
        self._deterministic = deterministic
        self.waiting = WaitMonitor()
        # The deadline of `next_slice`, which then raises a NotReadyError. Only one of several ranks has such a
        # deadline.
        self.wait_until = math.inf
        # Plain flags, so that a signal handler may set them.
        self.interrupted = False
        self.cancels_waits = False
        self._statistics = EpochStatsAggregator()
        # The newest version that was published before this process, in a resumed run.
        self._versions_before = 0
        # The batches that are being filled; made with the first one, which names the device.
        self._assembly: Assembly | None = None
        self._assembly_times = AssemblyTimes()
        self.batch_names: list[SliceName] = []
        self.batch_arrived_at: list[float] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Starts the actors and publishes the first policy. Does nothing after the first call."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the actors; removes their processes, threads, sockets and files. Idempotent."""

    def state(self) -> dict[str, Any]:
        """Returns the actors' state for a checkpoint, as JSON values. Thread-safe."""
        return {"policy_version": self.policy_version}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continues from an earlier result of `state`. Call it before `start`."""
        self._versions_before = state["policy_version"]

    def covered(self, pieces: Iterable[SliceName]) -> None:  # noqa: B027  # only a log needs to know
        """Records that training has used these trajectories. Later checkpoints include them."""

    def saved(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # only a log needs to know
        """Records that a checkpoint with this `state` is on the disk. Thread-safe."""

    def metrics(self) -> dict[str, float]:
        """Returns additional metrics of the actors since the last call, by tag."""
        return self._assembly_times.take()

    def renew(self) -> bool:
        """Resets the actors to the state of a resumed run. The trainer calls it after a checkpoint.

        Returns:
            True if the actors have restarted with the newest policy. False for actors in other processes, which
            continue to play.
        """
        return False

    @property
    def evaluators(self) -> EvaluatorsInfo:
        """The state of the evaluators of this run."""
        return EvaluatorsInfo()

    def evaluate_newest(  # noqa: B027  # only runs with evaluation need it
        self, env_steps: int, opponents: Mapping[int, PolicyState] = MappingProxyType({})
    ) -> None:
        """Requests an evaluation of the newest policy by the next free evaluator; returns at once.

        Args:
            env_steps: The environment steps of training so far.
            opponents: The arrays of the versions to play against, if the plan asks for opponents.
        """

    def take_evaluations(self) -> Sequence[EvaluationResult]:
        """Returns the evaluations that ended since the last call, in the order of their ends."""
        return ()

    def end_training(self) -> None:  # noqa: B027  # most kinds end their actors themselves
        """Tells the actors that training has ended, and serves the last policy until `stop`.

        From now on, the learner accepts no rollouts, and no actor may join.
        """

    def leave_waiting(self) -> None:  # noqa: B027  # most kinds end their actors themselves
        """Tells remote actors to wait for the next learner, because training continues in another process.

        Call it before `stop`; a signal handler may call it. `stop` ends the actors that this process started.
        """

    @property
    def leaves_waiting(self) -> bool:
        """True after `leave_waiting`, if actors of this kind then wait."""
        return False

    def cancel_waits(self) -> None:
        """Makes `stop` end busy actors at once, without waiting for them. A signal handler may call it."""
        self.cancels_waits = True

    @abstractmethod
    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Publishes the next version of the policy; actors load it between two rollouts.

        Args:
            state_dict: The policy's parameters and buffers; never the critic's.
        """

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses at which actors dial in, after `start`; none for kinds that do not listen."""
        return ()

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """The newest published version. Before `start`: 0, or the version of the resumed run."""

    @property
    @abstractmethod
    def queue_size(self) -> int:
        """The number of trajectories that wait for collection."""

    @property
    @abstractmethod
    def queue_capacity(self) -> int:
        """The largest number of waiting trajectories; beyond it, actors wait."""

    @property
    @abstractmethod
    def n_actors_alive(self) -> int:
        """The number of actors that are alive."""

    @property
    def actor_infos(self) -> Sequence[ActorInfo]:
        """Every actor that has ever joined, by slot; empty for actors that need not join."""
        return ()

    def is_played(self, since: float) -> bool:
        """Returns whether an actor has been playing a rollout since a time; see `is_played` of the module `waiting`."""
        longest_s = longest_rollout_s(self.n_rollout_steps, self.collect_timeout_s)
        return is_played(self.actor_infos, since, longest_s=longest_s)

    @property
    def n_rollouts(self) -> int:
        """The number of accepted rollouts from joined actors; 0 for actors that need not join."""
        return 0

    @property
    def stale_trajectories(self) -> int:
        """The number of trajectories that were dropped because their policy was too old; 0 for kinds that drop none."""
        return 0

    @property
    def duplicate_rollouts(self) -> int:
        """The number of rollouts that arrived again and were dropped; 0 if rollouts are not sent."""
        return 0

    @property
    def rejected_rollouts(self) -> int:
        """The number of rollouts that were refused as invalid; 0 if rollouts are not sent."""
        return 0

    @property
    def dropped_episodes(self) -> int:
        """The number of episodes that actors dropped because their environment raised."""
        return 0

    def status(self) -> LearnerStatus:
        """Returns the actors' part of the learner's status, which needs no trainer."""
        reason, waited_s = self.waiting.current()
        return LearnerStatus(
            phase=Phase.TRAINING,
            waiting_for=reason,
            waiting_s=waited_s,
            policy_version=self.policy_version,
            queue_size=self.queue_size,
            queue_capacity=self.queue_capacity,
            actors_alive=self.n_actors_alive,
            actors_expected=self.n_actors,
            duplicate_rollouts=self.duplicate_rollouts,
            rejected_rollouts=self.rejected_rollouts,
            stale_trajectories=self.stale_trajectories,
            dropped_episodes=self.dropped_episodes,
            software_version=software_version(),
        )

    def describe(self, *, algorithm: str, batch_size: int) -> LearnerDescription:
        """Describes the algorithm, the spaces and the work, for an actor that asks before it joins.

        Args:
            algorithm: The algorithm's name; empty if unknown.
            batch_size: The size of a batch; 0 if this process does not train.

        Raises:
            NotReadyError: The learner does not serve actors at the moment.
        """
        raise NotReadyError("the learner is starting or stopping; expected it to serve; try again with backoff")

    @abstractmethod
    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """Takes trajectories if there are any, oldest first. Never waits."""

    @abstractmethod
    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Waits for trajectories, oldest first.

        Args:
            max_trajectories: The most trajectories to take.
            enough: A hint: the trajectories that the caller needs before it can continue.

        Raises:
            CollectTimeoutError: No trajectory arrived by the deadline.
            NotReadyError: No trajectory arrived by `wait_until`.
            ActorFailedError: The actors cannot continue.
            CollectInterruptedError: `interrupt` was called.
        """

    def interrupt(self) -> None:
        """Ends all present and later waits of `collect_outputs`. Any thread, and signal handlers, may call it."""
        self.interrupted = True

    def collect_outputs(self, learner_device: str) -> tuple[Batch, int, int, float]:
        """Collects `batch_size` trajectories, first in, first out over all actors.

        A batch has trajectories of one substep. With several substeps, each substep fills its own batch, and this
        method returns the first full batch. Trajectories of a substep with few agents wait longest. Each batch of
        another substep makes them one update older.

        Args:
            learner_device: The device for the batch: `"cpu"`, `"cuda"`, `"cuda:1"`.

        Returns:
            The batch `[T, B, ...]`, the queue's size before and after, and the seconds spent dequeuing.

        Raises:
            CollectTimeoutError: No rollout arrived within `collect_timeout_s`; the message names the actors.
            ActorFailedError: An actor failed, and will not be restarted.
            CollectInterruptedError: `interrupt` was called.
        """
        started = time.perf_counter()
        before = self.queue_size
        with self._assembly_times.collecting():
            assembled = self._assemble(learner_device)
            batch = assembled.ready()
        self.batch_names, self.batch_arrived_at = assembled.names, assembled.arrived_at
        self._statistics.add_all(batch.episodes, batch.events)
        return batch, before, self.queue_size, time.perf_counter() - started

    def _assemble(self, learner_device: str) -> AssembledBatch:
        """Assembles the next batch; see `collect_outputs`."""
        if self._assembly is None:
            self._assembly = self._make_assembly(make_copier(learner_device))
        return self._fill(self._assembly)

    def _make_assembly(self, copier: Copier, *, n_slots: int = N_SLOTS) -> Assembly:
        return Assembly(
            RolloutShape.played_with(self.policy.spec, self.policy.spaces, self.n_rollout_steps),
            batch_size=self.batch_size,
            copier=copier,
            n_slots=n_slots,
            # An actor that has played its rollout plays no more before the next policy.
            keeps_idle=self._deterministic,
        )

    def _fill(self, assembly: Assembly) -> AssembledBatch:
        """Waits for trajectories until a batch is full."""
        # The next trajectories may be of any substep, so take what fits into every batch.
        while n_missing := assembly.n_missing:
            with self._assembly_times.waiting():
                piece = self.next_slice(n_missing, enough=n_missing)
            if n_left_out := assembly.add(piece):
                self._replace(piece, n_left_out)
        return assembly.finish()

    def _replace(self, piece: RolloutSlice, n_trajectories: int) -> None:
        """Requests replacements for trajectories without a transition, if actors play only as much as needed.

        Other kinds need not override it.
        """
        return

    def get_epoch_stats_aggregator(self) -> EpochStatsAggregator:
        """Returns the statistics of the epoch so far."""
        return self._statistics

    def get_stats_value(
        self, event: Callable[..., Any] | str, level: LogStatsLevel, name: str | None = None
    ) -> Statistic | dict[str, Statistic]:
        """Returns one value of the epoch's statistics.

        Args:
            event: The event, a method of its interface class, or its name.
            level: `LogStatsLevel.EPOCH`; values of steps and episodes are not sent to the learner.
            name: The statistic's name, if the event has several.

        Returns:
            The value; for a grouped statistic, the values by group.

        Raises:
            StatisticsError: The value does not exist; the message lists those that do.
        """
        return self._statistics.get_stats_value(event, level, name)
