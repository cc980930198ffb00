"""The interface of every kind of distributed actors."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import torch

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.reductions import Statistic
from rollcast.learner.batch import Batch
from rollcast.learner.ingest.batcher import Batcher
from rollcast.learner.ingest.queue import RolloutSlice, SliceName
from rollcast.learner.waiting import WaitMonitor
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import PolicyState


class DistributedActors(ABC):
    """Actors run rollouts by themselves; the learner collects them in batches and broadcasts new policies.

        with actors:                                     # start ... stop
            while training:
                batch, before, after, seconds = actors.collect_outputs("cpu")
                algorithm.update(batch)
                actors.broadcast_updated_policy(algorithm.policy_state())

    `start`, `stop`, `collect_outputs` and `broadcast_updated_policy` belong to one thread, the trainer's. What
    describes the state (`waiting`, `queue_size`, `n_actors_alive`) may be read from any.

    Args:
        env_factory: Makes one environment. None where the actors bring their own.
        policy: The policy to sample actions from; its weights are the first version that is cast.
        n_rollout_steps: T, the steps in a rollout.
        n_actors: How many actors to run; 0 where they dial in by themselves.
        batch_size: B, the trajectories in a batch.
        collect_timeout_s: How long `collect_outputs` waits for a batch before it gives up, in seconds.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    def __init__(
        self,
        env_factory: EnvFactory | None,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        *,
        collect_timeout_s: float = 600.0,
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
        self.waiting = WaitMonitor()
        # A plain flag, so that a signal handler may set it: every wait of `collect_outputs` looks at it.
        self.interrupted = False
        # Likewise: `stop` looks at it.
        self.is_in_a_hurry = False
        self._statistics = EpochStatsAggregator()
        # Versions that were cast before this process: those of the run that is resumed.
        self._versions_before = 0
        # By substep key: batches that are being filled.
        self._batchers: dict[str, Batcher] = {}
        # Whose trajectories are in these; and in the last batch of `collect_outputs`.
        self._names: dict[str, list[SliceName]] = {}
        self.batch_names: list[SliceName] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Starts the actors and casts the first policy. Does nothing when started already."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the actors and leaves no process, thread, socket or file behind. Does nothing when stopped already."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the actors, as JSON has it. Any thread may ask."""
        return {"policy_version": self.policy_version}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` has said; called before `start`."""
        self._versions_before = state["policy_version"]

    def covered(self, pieces: Iterable[SliceName]) -> None:  # noqa: B027  # nothing where nobody asks what is missing
        """Notes that what is learnt depends on these trajectories by now: a checkpoint from now on has them."""

    def saved(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # likewise
        """Notes that a checkpoint in which `state` had said this is on the disk. Any thread may call."""

    def metrics(self) -> dict[str, float]:
        """What there is to write about the actors besides the properties below, by name."""
        return {}

    def renew(self) -> bool:
        """Brings the actors into the state in which a run that is resumed finds them; called after a checkpoint.

        Returns:
            Whether they have begun anew, with the newest policy. Those in other processes do not, and play on.
        """
        return False

    def end_training(self) -> None:  # noqa: B027  # most kinds end their actors themselves
        """Tells who dialled in that training has ended, and goes on serving the last policy until `stop`.

        No rollout is taken any more, and nobody is let in to act.
        """

    def leave_waiting(self) -> None:  # noqa: B027  # most kinds end their actors themselves
        """Says before `stop` that this process ends and training does not: who dialled in waits for the next learner.

        A signal handler may call it. Actors that were started here end with `stop` all the same.
        """

    def hurry(self) -> None:
        """Has `stop` wait for nobody: whoever is still at work is ended. A signal handler may call it."""
        self.is_in_a_hurry = True

    @abstractmethod
    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Casts the next version of the policy; actors take it up between two rollouts.

        Args:
            state_dict: The policy's parameters and buffers; never the critic's.
        """

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """The newest version that was cast; before `start` 0, or that of the run that is resumed."""

    @property
    @abstractmethod
    def queue_size(self) -> int:
        """Trajectories that wait to be collected."""

    @property
    @abstractmethod
    def queue_capacity(self) -> int:
        """Trajectories that may wait before the actors have to."""

    @property
    @abstractmethod
    def n_actors_alive(self) -> int:
        """Actors that are there."""

    @property
    def stale_trajectories(self) -> int:
        """Trajectories that were dropped because their policy was too old; 0 where that cannot be."""
        return 0

    @property
    def duplicate_rollouts(self) -> int:
        """Rollouts that came again, and were dropped; 0 where nothing travels."""
        return 0

    @property
    def rejected_rollouts(self) -> int:
        """Rollouts refused because they did not fit; 0 where nothing travels."""
        return 0

    @abstractmethod
    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """Takes trajectories if there are any, the oldest first; never waits."""

    @abstractmethod
    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Waits for trajectories, the oldest first.

        Args:
            max_trajectories: How many to take at most.
            enough: A hint: there is no hurry until so many have come.

        Raises:
            CollectTimeoutError: None came by the deadline.
            ActorFailedError: The actors cannot go on.
            CollectInterruptedError: `interrupt` was called.
        """

    def interrupt(self) -> None:
        """Ends the wait of `collect_outputs`, now and from now on. Any thread, and signal handlers, may call it."""
        self.interrupted = True

    def collect_outputs(self, learner_device: str) -> tuple[Batch, int, int, float]:
        """Collects `batch_size` trajectories, first in first out over all actors.

        A batch is of one substep. Where the environment has several, each has a batch that is being filled, and the
        first that is full is handed out. So a substep of few agents waits longest: its oldest trajectories lag by as
        many updates more as the others fill batches meanwhile.

        Args:
            learner_device: Where the batch is wanted: `"cpu"`, `"cuda"`, `"cuda:1"`.

        Returns:
            The batch `[T, B, ...]`, the queue's size before and after, and the seconds spent dequeuing.

        Raises:
            CollectTimeoutError: No batch for `collect_timeout_s`; says who was waited for.
            ActorFailedError: An actor failed, and its failures are not to be survived (any more).
            CollectInterruptedError: `interrupt` was called.
        """
        started = time.perf_counter()
        if not self._batchers:
            self._batchers = {
                key: Batcher(
                    {key: substep},
                    n_rollout_steps=self.n_rollout_steps,
                    batch_size=self.batch_size,
                    device=torch.device(learner_device),
                )
                for key, substep in self.policy.spaces.items()
            }
        before = self.queue_size
        # Of which substep the next ones are is not known before they are here: no more than any batch has room for.
        fullest = min(self._batchers.values(), key=_missing)
        while fullest.n_missing:
            piece = self.next_slice(fullest.n_missing, enough=fullest.n_missing)
            self._batchers[piece.rollout.substep_key].add(piece)
            self._names.setdefault(piece.rollout.substep_key, []).append(piece.name)
            fullest = min(self._batchers.values(), key=_missing)
        batch = fullest.finish()
        (key,) = batch.substeps
        self.batch_names = self._names.pop(key)
        self._statistics.add_all(batch.episodes, batch.events)
        return batch, before, self.queue_size, time.perf_counter() - started

    def get_epoch_stats_aggregator(self) -> EpochStatsAggregator:
        """The statistics of the epoch so far."""
        return self._statistics

    def get_stats_value(
        self, event: Callable[..., Any] | str, level: LogStatsLevel, name: str | None = None
    ) -> Statistic | dict[str, Statistic]:
        """One value of the epoch's statistics.

        Args:
            event: The event, a method of its interface class, or its name.
            level: `LogStatsLevel.EPOCH`; steps and episodes are not propagated.
            name: Which of the event's statistics, where it has several.

        Returns:
            The value; of a grouped statistic, the values by group.

        Raises:
            StatisticsError: There is no such value; says which exist.
        """
        return self._statistics.get_stats_value(event, level, name)


def _missing(batcher: Batcher) -> int:
    return batcher.n_missing
