"""Actors behind the learner's gRPC server: the common part of local processes, containers and remote actors."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.status_only_control import StatusOnlyControl
from rollcast.learner.actors.supervision import ActorEnd
from rollcast.learner.batching.assembly import AssembledBatch
from rollcast.learner.batching.batcher import N_SLOTS
from rollcast.learner.batching.collector import LOOK_S, RolloutCollector
from rollcast.learner.devices.copier import make_copier
from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.queueing.arrivals import Arrivals
from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.learner.queueing.queue import RolloutQueue, RolloutSlice, SliceName, queue_capacity
from rollcast.learner.queueing.slot_order import SlotOrder, actors_in_step
from rollcast.learner.queueing.stale_trajectories import FreshDestination, StaleTrajectories
from rollcast.learner.serving.evaluations import EvaluationResult, EvaluatorsInfo
from rollcast.learner.serving.rounds import Rounds
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.server import ActorServer, ActorsWork, EarlierLearner, Endpoint, check_sizes
from rollcast.learner.waiting import explain_wait
from rollcast.services.errors import CollectInterruptedError, ConfigurationError
from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo

logger = logging.getLogger(__name__)

# The time in which streams may end by themselves when the server stops.
_GRACE_S = 1.0


class ServedDistributedActors(DistributedActors):
    """Actors that use `RolloutService`, `PolicyService` and `LearnerService`.

    Staleness: at most `ceil(batch_size * queue_out_of_sync_factor)` trajectories are queued or covered by credit, in
    addition to those that a waiting learner lacks for its batch. Beyond that, each actor has at most one rollout in
    transit. With `bounded_staleness`, no actor starts a rollout with a policy older than the newest one at the time of
    its credit. With actors of equal speed, no rollout is then more than `ceil(queue_out_of_sync_factor + n_actors *
    envs_per_actor / batch_size)` updates old. Faster actors overtake a slow one while it plays: `max_policy_lag` drops
    rollouts that become too old.

    Args:
        env_factory: Makes one environment; None if the actors make their own.
        policy: The policy; its weights are the first published version.
        n_rollout_steps: T.
        n_actors: The number of actors to start; 0 if actors dial in.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: The capacity of the queue, in batches.
        envs_per_actor: The number of environments of an actor without its own setting.
        seeds: The seeds of all actors.
        serving: The serving options.
        bounded_staleness: The kind's default, for options that leave it open.
        actor_names: The names of local actors, by slot.

    Raises:
        ConfigurationError: A number is out of range, or `deterministic` is not possible with these numbers.
    """

    def __init__(
        self,
        env_factory: EnvFactory | None,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        queue_out_of_sync_factor: float,
        *,
        envs_per_actor: int,
        seeds: ActorSeeds,
        serving: ServingOptions,
        bounded_staleness: bool = True,
        actor_names: Sequence[str] = (),
    ) -> None:
        super().__init__(
            env_factory,
            policy,
            n_rollout_steps,
            n_actors,
            batch_size,
            collect_timeout_s=serving.collect_timeout_s,
            deterministic=serving.deterministic,
        )
        if not 1 <= envs_per_actor <= MAX_ENVS_PER_ACTOR:
            raise ConfigurationError(f"envs_per_actor is {envs_per_actor}; expected 1 to {MAX_ENVS_PER_ACTOR}")
        self._serving = serving
        self._bounded_staleness = bounded_staleness if serving.bounded_staleness is None else serving.bounded_staleness
        self._work = ActorsWork(n_rollout_steps, envs_per_actor, seeds, tuple(actor_names))
        self._capacity = queue_capacity(batch_size, queue_out_of_sync_factor)
        # The number of actors that fill a batch together, in step; 0: they do not play in step.
        self._n_in_step = actors_in_step(policy.spaces, batch_size, envs_per_actor) if serving.deterministic else 0
        self._limits = dataclasses.replace(
            serving.limits, max_actors=self._n_in_step or max(serving.max_actors, n_actors)
        )
        self._queue = RolloutQueue(self._capacity)
        self._stale = StaleTrajectories(0 if serving.on_policy else serving.max_policy_lag)
        # Kept after `stop`, so that the last policy version and the list of actors stay readable.
        self._server: ActorServer | None = None
        self._next_look = 0.0
        # From the checkpoint that is resumed: its actors, and what it has of the log; None: it has nothing of one.
        self._actors_before: Mapping[str, Mapping[str, Any]] = {}
        self._log_before: Mapping[str, Any] | None = None
        # True if this run has rollouts by versions above the newest: they come from before the learner was killed.
        self._keeps_newer = False
        self._taking = self._take_from(Arrivals(self._queue))
        # A plain flag, so that a signal handler may set it: decides what `stop` tells the actors.
        self._training_goes_on = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses after `start`, with the actual ports in place of port 0, without `local_address`."""
        served = self._server.addresses if self._server is not None else ()
        return tuple(address for address in served if address != self._serving.local_address)

    def start(self) -> None:
        """Publishes the first policy and begins to serve.

        Raises:
            AddressInUseError: Another process serves one of the addresses.
            ConfigurationError: An address cannot be bound, or is open to other machines without TLS and without
                permission. The write-ahead log cannot be read.
            InvalidSpaceError: A space exceeds a limit, or cannot be sent.
            LimitExceededError: The rollouts of local actors exceed `max_rollout_bytes`.
        """
        self._serve(self._endpoints())

    def _endpoints(self) -> list[Endpoint]:
        """Returns the endpoints according to the options."""
        own = self._serving
        local = [] if own.local_address is None else [Endpoint(own.local_address, own.security)]
        return [*local, *(Endpoint(address, own.security, own.announcement) for address in own.addresses)]

    def _serve(self, endpoints: Sequence[Endpoint]) -> None:
        """Begins to serve at the endpoints. Does nothing after the first call."""
        if self._is_serving:
            return
        check_sizes(self.policy, self._work, self._limits, starts_actors=self.n_actors > 0)
        durable = self._serving.durable
        self._queue = RolloutQueue(self._capacity)
        if durable is not None:
            self._recover(durable)
        self._taking = self._take_from(Arrivals(self._queue, durable=durable))
        server = self._server = ActorServer(
            self.policy,
            self._work,
            self._destination(),
            limits=self._limits,
            # Otherwise an actor with a rollout that is stale from its start would continue forever.
            credit_lag=0 if self._bounded_staleness else self._serving.max_policy_lag,
            in_step=bool(self._n_in_step),
            rounds=Rounds(self.batch_size) if self._serving.on_policy and not self._n_in_step else None,
            durable=durable,
            evaluations=self._serving.evaluations,
            earlier=EarlierLearner(self._versions_before, self._actors_before),
            progress=self.progress,
            run_history=self._serving.run_history,
            assignment=self._serving.assignment,
        )
        if self._n_in_step:
            order = SlotOrder(self._n_in_step, server.registry.slot_of)
            self._taking = self._take_from(Arrivals(self._queue, order=order, durable=durable))
        try:
            control = self._serving.control or self._status_only_control()
            server.listen(endpoints, control, self._serving.replay, self._serving.history)
        except BaseException:
            self.stop()
            raise

    def _take_from(self, arrivals: Arrivals) -> RolloutCollector:
        return RolloutCollector(
            self._queue,
            arrivals,
            self._stale,
            policy_version=lambda: self.policy_version,
            keeps_newer=self._keeps_newer,
            note_taken=lambda rollout: self._started().registry.taken(rollout),  # noqa: PLW0108  # made at every start
            note_dropped=lambda piece: self.covered([piece.name]),
        )

    def _replace(self, piece: RolloutSlice, n_trajectories: int) -> None:
        self._started().replace(piece.rollout, n_trajectories)

    def _recover(self, durable: DurableRollouts) -> None:
        """Opens the log, and finds acknowledged rollouts of a killed learner, which training takes first."""
        header = RecordingHeader(
            spaces=self.policy.spaces,
            n_rollout_steps=self.n_rollout_steps,
            n_envs=self._work.envs_per_actor,
            state_size=self.policy.spec.state_size,
            frame_stack=self.policy.spec.frame_stack,
        )
        inventory = durable.open(header, self._log_before)
        self._actors_before = inventory.actors(self._actors_before)
        # The killed learner may have published versions that no checkpoint has: rollouts by them are recovered, too.
        self._versions_before = self._serving.newest_version(max(self._versions_before, inventory.policy_version))
        self._keeps_newer = self._versions_before > 0

    def _destination(self) -> RolloutDestination:
        other = self._serving.destination
        return self._queue if other is None else FreshDestination(other, self._taking.drops)

    def _status_only_control(self) -> StatusOnlyControl:
        collects = self._serving.destination is None
        return StatusOnlyControl(self, batch_size=self.batch_size if collects else 0, replay=self._serving.replay)

    @property
    def _is_serving(self) -> bool:
        return self._server is not None and self._server.is_open

    def stop(self) -> None:
        """Stops serving. Tells the actors that training has ended, or, after `leave_waiting`, to reconnect."""
        if self._server is None or not self._server.is_open:
            return
        self._taking.end()
        self._server.close(training_goes_on=self._training_goes_on, grace_s=0.0 if self.cancels_waits else _GRACE_S)
        if self._serving.durable is not None:
            self._serving.durable.close()
        self._assembly = None

    def end_training(self) -> None:
        """See `DistributedActors.end_training`.

        Raises:
            RollcastError: The last policy cannot be published, because training has diverged.
        """
        server = self._started()
        server.publisher.settle()
        server.end_training()

    def _started(self) -> ActorServer:
        assert self._server is not None, "start() comes first"
        return self._server

    def state(self) -> dict[str, Any]:
        """See `DistributedActors.state`; contains each actor's process, and its last rollout that training took."""
        state = super().state() | {"actors": self._server.registry.state() if self._server is not None else {}}
        log = self._serving.durable.state() if self._serving.durable is not None else None
        return state if log is None else state | {"log": log}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.load_state`."""
        super().load_state(state)
        self._actors_before = state["actors"]
        for name in self._actors_before:
            # Before any rank serves: an actor that reconnects first at another rank is sent here.
            self._serving.assignment.took(name)
        self._log_before = state.get("log")
        if self._log_before is not None:
            Coverage.from_json(self._log_before)  # refuses a damaged checkpoint while it is read

    def covered(self, pieces: Iterable[SliceName]) -> None:
        """See `DistributedActors.covered`."""
        if self._serving.durable is not None:
            self._serving.durable.covered(pieces)

    def saved(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.saved`; removes the checkpoint's rollouts from the log."""
        if self._serving.durable is not None and "log" in state:
            self._serving.durable.saved(state["log"])

    def metrics(self) -> dict[str, float]:
        """See `DistributedActors.metrics`; includes metrics of the log."""
        return super().metrics() | (self._serving.durable.metrics() if self._serving.durable is not None else {})

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Publishes the next version: a thread encodes it once, and wakes the waiting actors.

        Raises:
            RollcastError: The previous version could not be published, because training has diverged.
        """
        self._started().publish(state_dict, self.progress)

    @property
    def evaluators(self) -> EvaluatorsInfo:
        """The state of the evaluators of this run."""
        evaluations = self._serving.evaluations
        return EvaluatorsInfo() if evaluations is None else evaluations.info(n_local=self._n_local_evaluators())

    def _n_local_evaluators(self) -> int:
        """Returns the number of evaluators on this machine."""
        return 0

    def evaluate_newest(self, env_steps: int, opponents: Mapping[int, PolicyState] = MappingProxyType({})) -> None:
        """See `DistributedActors.evaluate_newest`."""
        self._started().evaluate_newest(env_steps, opponents)

    def take_evaluations(self) -> Sequence[EvaluationResult]:
        """See `DistributedActors.take_evaluations`."""
        evaluations = self._serving.evaluations
        return () if evaluations is None else evaluations.take()

    @property
    def policy_version(self) -> int:
        """The newest published version."""
        return self._server.publisher.version if self._server is not None else self._versions_before

    @property
    def queue_size(self) -> int:
        """The number of trajectories that wait for collection."""
        return self._queue.size

    @property
    def queue_capacity(self) -> int:
        """The largest number of waiting trajectories; 0 with a `destination`. At this number, actors wait."""
        return self._capacity if self._serving.destination is None else 0

    @property
    def n_actors_alive(self) -> int:
        """The number of actors with an open stream."""
        return self._server.registry.n_alive() if self._server is not None else 0

    @property
    def actor_infos(self) -> list[ActorInfo]:
        """Every actor that has ever joined, by slot."""
        return self._server.registry.infos() if self._server is not None else []

    @property
    def n_rollouts(self) -> int:
        """The number of accepted rollouts."""
        return self._server.registry.n_rollouts if self._server is not None else 0

    @property
    def stale_trajectories(self) -> int:
        """The number of dropped trajectories: older than `max_policy_lag` allows, or played for an earlier learner."""
        return self._stale.count

    @property
    def duplicate_rollouts(self) -> int:
        """The number of rollouts that arrived again after a reconnect and were dropped."""
        return self._server.intake.duplicate_rollouts if self._server is not None else 0

    @property
    def rejected_rollouts(self) -> int:
        """The number of rollouts that were refused as invalid."""
        return self._server.intake.rejected_rollouts if self._server is not None else 0

    @property
    def dropped_episodes(self) -> int:
        """The number of episodes that actors dropped because their environment raised."""
        return self._server.registry.n_dropped_episodes if self._server is not None else 0

    def describe(self, *, algorithm: str, batch_size: int) -> LearnerDescription:
        """See `DistributedActors.describe`."""
        if self._server is None or not self._server.is_open:
            return super().describe(algorithm=algorithm, batch_size=batch_size)
        return self._server.intake.describe(algorithm=algorithm, batch_size=batch_size)

    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """Takes trajectories from the queue if there are any; checks the actors from time to time."""
        with self._taking.turn():
            self._look_after_in_time()
            return self._taking.get(max_trajectories, 0.0)

    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Waits for trajectories; `waiting` names the missing actors."""
        with self._taking.turn():
            return self.poll_slice(max_trajectories) or self._taking.wait(
                max_trajectories,
                enough=enough,
                timeout_s=self.collect_timeout_s,
                wait_until=self.wait_until,
                waiting=self.waiting,
                look_after=self._look_after,
                explain=self.explain_wait,
                is_played=self.is_played,
            )

    def explain_wait(self) -> str:
        """Returns the actors for which the learner waits, and advice."""
        durable = self._serving.durable
        if durable is not None and (problem := durable.problem()):
            return problem
        return explain_wait(self.actor_infos, self.addresses, n_in_step=self._n_in_step, dialled=self._dialled())

    def _dialled(self) -> str:
        """Returns the addresses at which environments may dial in; empty: none."""
        return ""

    def _assemble(self, learner_device: str) -> AssembledBatch:
        """Assembles the next batch, or takes one that was assembled ahead."""
        if self._assembly is None:
            copier = make_copier(learner_device)
            # One more slot, so that a batch stays valid as long as without assembling ahead.
            is_ahead = self._serving.assembles_ahead(copier, n_substeps=len(self.policy.spaces))
            self._assembly = self._make_assembly(copier, n_slots=N_SLOTS + is_ahead)
            if is_ahead:
                self._taking.assemble_ahead(self._assembly, self.batch_size)
        with self._taking.turn():
            self._look_after_in_time()
            return self._taking.take_ahead() or self._fill(self._assembly)

    def _look_after_in_time(self) -> None:
        # Also if the trainer never waits: otherwise a dead actor would stay dead.
        if time.monotonic() >= self._next_look:
            self._look_after()

    def _look_after(self) -> None:
        self._next_look = time.monotonic() + LOOK_S
        if self.interrupted:
            raise CollectInterruptedError("collecting was interrupted, because training ends")
        server = self._started()
        # Actors may wait for a version that never comes.
        server.publisher.check()
        server.pass_late_on()
        self._look_after_actors()

    def _look_after_actors(self) -> None:
        """Restarts ended actors, for kinds that start them.

        Raises:
            ActorFailedError: An actor failed, and will not be restarted.
        """

    def _note_exit(self, actor_id: str, end: ActorEnd) -> None:
        """Records that a local actor has ended, even if its stream looks alive."""
        if self._server is not None:
            told = self._server.registry.lost(actor_id, end.report.splitlines()[0], end.failure)
            if told is not None:
                logger.error("actor %s failed:%s", actor_id, told)
