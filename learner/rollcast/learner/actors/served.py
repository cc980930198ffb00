"""Actors behind the learner's gRPC server: what local processes, containers and remote actors have in common."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.publisher import PolicyPublisher
from rollcast.learner.actors.stale_trajectories import StaleTrajectories
from rollcast.learner.actors.unsteered import UnsteeredControl
from rollcast.learner.actors.waits import explain_wait
from rollcast.learner.durable.coverage import Coverage
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.ingest.arrivals import Arrivals
from rollcast.learner.ingest.credits import CreditRule
from rollcast.learner.ingest.destination import RolloutDestination
from rollcast.learner.ingest.intake import RolloutIntake
from rollcast.learner.ingest.queue import RolloutQueue, RolloutSlice, SliceName, queue_capacity
from rollcast.learner.ingest.registry import ActorRegistry
from rollcast.learner.ingest.seeds import ActorSeeds
from rollcast.learner.ingest.slot_order import SlotOrder, actors_in_step
from rollcast.services.errors import CollectInterruptedError, CollectTimeoutError, ConfigurationError
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_ENVS_PER_ACTOR, Limits
from rollcast.services.policies.policies import PolicyState
from rollcast.services.replay.service import ReplaySource
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.size import check_rollout_size
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.server import LearnerServer, make_server
from rollcast.services.spaces.codec import check_spaces_travel
from rollcast.services.status.service import LearnerControl
from rollcast.services.status.status import ActorInfo

# How often the trainer's thread looks up while it waits for rollouts.
_LOOK_S = 0.25

# How long streams may take to end by themselves when the server stops.
_GRACE_S = 1.0


class ServedDistributedActors(DistributedActors):
    """Serves `RolloutService`, `PolicyService` and `LearnerService` to whoever dials in.

    Staleness: at most `ceil(batch_size * queue_out_of_sync_factor)` trajectories are queued or promised room, besides
    what the learner lacks of its batch while it waits, and each actor has at most one rollout under way beyond that.
    With `bounded_staleness`, no actor starts a rollout with a policy older than the newest when its credit was given.
    Between actors of equal speed no rollout is then more than `ceil(queue_out_of_sync_factor + n_actors *
    envs_per_actor / batch_size)` updates old. An actor that is slower than the others is overtaken while it plays:
    `max_policy_lag` drops what that makes too old.

    Args:
        env_factory: Makes one environment; None where the actors bring their own.
        policy: The policy to cast first.
        n_rollout_steps: T.
        n_actors: Actors to start; 0 where they dial in by themselves.
        batch_size: B, in trajectories.
        queue_out_of_sync_factor: Times `batch_size`, the capacity of the queue.
        addresses: Where to listen: `host:port` (port 0: any free one) or `unix:/path`.
        actor_env_seeds: Seeds of the environments by slot; derived from `seed` where None.
        actor_agent_seeds: Seeds of the sampling by slot; likewise.
        envs_per_actor: Environments that actors step which leave it to the learner.
        seed: From which all other seeds derive.
        max_actors: Actors that may be alive at once.
        max_policy_lag: Trajectories that are more versions old are dropped, counted and warned of; None: none is.
        bounded_staleness: Actors wait for the newest policy before they start a rollout. False: they start with the one
            they have, which pays where policies take long to arrive.
        control: Who may steer over `LearnerService`; None: it tells the status only.
        security: What is asked of clients that come over TCP.
        deterministic: Actors play in step with the updates, one rollout each for each of them, and batches have them in
            the order of the actors' slots: the same seeds give the same policies, whoever is faster. `batch_size` is a
            multiple of what an actor plays.
        collect_timeout_s: How long `collect_outputs` waits before it gives up.
        actor_names: The names of the actors that it starts, by slot.
    """

    def __init__(
        self,
        env_factory: EnvFactory | None,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        queue_out_of_sync_factor: float = 1.0,
        *,
        addresses: Sequence[str],
        actor_env_seeds: Sequence[int] = (),
        actor_agent_seeds: Sequence[int] = (),
        envs_per_actor: int,
        seed: int = 0,
        max_actors: int = 64,
        max_policy_lag: int | None = None,
        bounded_staleness: bool = True,
        deterministic: bool = False,
        control: LearnerControl | None = None,
        security: ServerSecurity = PLAIN_SERVER,
        collect_timeout_s: float = 600.0,
        actor_names: Sequence[str] = (),
    ) -> None:
        super().__init__(
            env_factory, policy, n_rollout_steps, n_actors, batch_size, collect_timeout_s=collect_timeout_s
        )
        if not 1 <= envs_per_actor <= MAX_ENVS_PER_ACTOR:
            raise ConfigurationError(f"envs_per_actor is {envs_per_actor}; expected 1 to {MAX_ENVS_PER_ACTOR}")
        self._envs_per_actor = envs_per_actor
        self._capacity = queue_capacity(batch_size, queue_out_of_sync_factor)
        self._addresses = tuple(addresses)
        self._seed = seed
        self._seeds = (tuple(actor_env_seeds), tuple(actor_agent_seeds))
        self._bounded_staleness = bounded_staleness
        # How many actors make a batch, in step with one another; 0: as they come.
        self._n_in_step = actors_in_step(policy.spaces, batch_size, envs_per_actor) if deterministic else 0
        self._max_actors = self._n_in_step or max(max_actors, n_actors)
        self._control = control
        self._security = security
        self._actor_names = tuple(actor_names)
        # What clients get at each address from `start` on; its `max_actors` is the one above.
        self.limits: Limits = DEFAULT_LIMITS
        # What `ReplayService` serves from `start` on, by substep key; None: there is none.
        self.replay: Mapping[str, ReplaySource] | None = None
        # Where rollouts go from `start` to `stop`; None: into the queue, to be collected.
        self.destination: RolloutDestination | None = None
        # Where rollouts are written before they are acknowledged, from `start` to `stop`; None: nowhere.
        self.durable: DurableRollouts | None = None
        self._queue = RolloutQueue(self._capacity)
        self._arrivals = Arrivals(self._queue)
        self._publisher: PolicyPublisher | None = None
        self._registry: ActorRegistry | None = None
        self._intake: RolloutIntake | None = None
        self._servers: list[LearnerServer] = []
        self._next_look = 0.0
        # Those of the run that is resumed, as the registry's `state` said.
        self._actors_before: Mapping[str, Mapping[str, Any]] = {}
        # What the checkpoint that is resumed has of the log; None: nothing.
        self.log_before: Mapping[str, Any] | None = None
        # Whether rollouts by versions above the newest are of this run, from before its learner was killed.
        self._keeps_newer = False
        # A plain flag, so that a signal handler may set it: what `stop` tells the actors.
        self._training_goes_on = False
        self._stale = StaleTrajectories(max_policy_lag)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, once started, with the ports that were found where 0 was asked for."""
        return tuple(server.address for server in self._servers)

    def start(self) -> None:
        """Casts the first policy and begins to serve.

        Raises:
            AddressInUseError: Somebody else serves one of the addresses.
            ConfigurationError: One of them cannot be had, or is open to other machines without TLS and that was not
                asked for; or the write-ahead log cannot be read.
            InvalidSpaceError: A space is above a limit, or has no place on the wire.
            LimitExceededError: The rollouts of the actors that are started here are above `max_rollout_bytes`.
        """
        if self._intake is not None:
            return
        limits = dataclasses.replace(self.limits, max_actors=self._max_actors)
        check_spaces_travel(self.policy.spaces)
        if self.n_actors:
            # those that are started here; who dials in may step fewer environments, and is asked at Join
            check_rollout_size(
                self.policy.spaces,
                self.n_rollout_steps,
                self._envs_per_actor,
                max_rollout_bytes=limits.max_rollout_bytes,
                advice="lower n_rollout_steps or envs_per_actor, or raise --limits.max-rollout-bytes",
            )
        self._queue = RolloutQueue(self._capacity)
        if self.durable is not None:
            self._recover(self.durable)
        self._registry = ActorRegistry(
            max_actors=limits.max_actors,
            join_lease_s=limits.join_lease_s,
            reserved_names=self._actor_names,
        )
        self._registry.load_state(self._actors_before)
        publisher = self._publisher = PolicyPublisher(
            self.policy.spaces, self.policy.spec, seed=self._seed, first_version=self._versions_before + 1
        )
        publisher.publish(self.policy.state_arrays())
        self._intake = RolloutIntake(
            self._registry,
            self.destination or self._queue,
            seeds=ActorSeeds(self._seed, *self._seeds),
            spaces=self.policy.spaces,
            policy=self.policy.spec,
            n_rollout_steps=self.n_rollout_steps,
            envs_per_actor=self._envs_per_actor,
            rule=CreditRule(
                policy_version=lambda: publisher.version,
                bounded_staleness=self._bounded_staleness,
                in_step=bool(self._n_in_step),
            ),
            durable=self.durable,
            max_rollout_bytes=limits.max_rollout_bytes,
        )
        order = SlotOrder(self._n_in_step, self._registry.slot_of) if self._n_in_step else None
        self._arrivals = Arrivals(self._queue, order=order, durable=self.durable)
        control = self._control or UnsteeredControl(self)
        try:
            for address in self._addresses:
                server = make_server(
                    address,
                    sink=self._intake,
                    source=self._publisher,
                    control=control,
                    replay=self.replay,
                    limits=limits,
                    security=self._security_at(address),
                )
                server.start()
                self._servers.append(server)
        except BaseException:
            self.stop()
            raise

    def _security_at(self, address: str) -> ServerSecurity:
        """What is asked of clients at one of the addresses."""
        del address
        return self._security

    def stop(self) -> None:
        """Stops serving; tells the actors that training has ended, or, after `leave_waiting`, to come back later."""
        if self._intake is None or self._publisher is None:
            return
        for server in self._servers:
            server.drain()
        if not self._training_goes_on:
            self._tell_the_end(self._intake, self._publisher)
        (self.destination or self._queue).close()
        for server in self._servers:
            server.stop(0.0 if self.is_in_a_hurry else _GRACE_S)
        self._servers.clear()
        if self.durable is not None:
            self.durable.close()
        self._intake = None
        self._batchers.clear()

    def end_training(self) -> None:
        """See `DistributedActors.end_training`."""
        assert self._intake is not None, "start() comes first"
        assert self._publisher is not None
        self._tell_the_end(self._intake, self._publisher)
        (self.destination or self._queue).close()

    @staticmethod
    def _tell_the_end(intake: RolloutIntake, publisher: PolicyPublisher) -> None:
        intake.end_training()
        publisher.end()

    def state(self) -> dict[str, Any]:
        """See `DistributedActors.state`: of every actor, which process it is, and how far its rollouts were taken."""
        state = super().state() | {"actors": self._registry.state() if self._registry is not None else {}}
        log = self.durable.state() if self.durable is not None else None
        return state if log is None else state | {"log": log}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.load_state`."""
        super().load_state(state)
        self._actors_before = state["actors"]
        self.log_before = state.get("log")
        if self.log_before is not None:
            Coverage.from_json(self.log_before)  # a checkpoint that has none is refused while it is read

    def _recover(self, durable: DurableRollouts) -> None:
        """Finds what a learner that was killed had acknowledged; it is handed out first."""
        inventory = durable.open(self.rollouts_header(), self.log_before)
        self._actors_before = inventory.actors(self._actors_before)
        # so that what was played by versions that no checkpoint knows is not from the future
        self._versions_before = max(self._versions_before, inventory.policy_version)
        self._keeps_newer = self._versions_before > 0

    def rollouts_header(self) -> RecordingHeader:
        """What the rollouts look like, for those who keep them in files."""
        return RecordingHeader(
            spaces=self.policy.spaces, n_rollout_steps=self.n_rollout_steps, n_envs=self._envs_per_actor
        )

    def covered(self, pieces: Iterable[SliceName]) -> None:
        """See `DistributedActors.covered`."""
        if self.durable is not None:
            self.durable.covered(pieces)

    def saved(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.saved`: what the checkpoint has is removed from the log."""
        if self.durable is not None and "log" in state:
            self.durable.saved(state["log"])

    def metrics(self) -> dict[str, float]:
        """See `DistributedActors.metrics`: those of the log."""
        return self.durable.metrics() if self.durable is not None else {}

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Encodes the next version once and wakes every subscriber."""
        assert self._publisher is not None, "start() comes first"
        self._publisher.publish(state_dict)

    @property
    def policy_version(self) -> int:
        """The newest version that was cast."""
        return self._publisher.version if self._publisher is not None else self._versions_before

    @property
    def queue_size(self) -> int:
        """Trajectories that wait to be collected."""
        return self._queue.size

    @property
    def queue_capacity(self) -> int:
        """Trajectories that may wait before the actors have to; 0 where none do, since there is a `destination`."""
        return self._capacity if self.destination is None else 0

    @property
    def n_actors_alive(self) -> int:
        """Actors whose stream is open."""
        return self._registry.n_alive() if self._registry is not None else 0

    @property
    def actor_infos(self) -> list[ActorInfo]:
        """Every actor that has ever joined, by slot."""
        return self._registry.infos() if self._registry is not None else []

    @property
    def stale_trajectories(self) -> int:
        """Trajectories that were dropped: older than `max_policy_lag` allows, or played for an earlier learner."""
        return self._stale.count

    @property
    def duplicate_rollouts(self) -> int:
        """Rollouts received again after a reconnect, and dropped."""
        return self._intake.duplicate_rollouts if self._intake is not None else 0

    @property
    def rejected_rollouts(self) -> int:
        """Rollouts refused because they did not fit."""
        return self._intake.rejected_rollouts if self._intake is not None else 0

    @property
    def intake(self) -> RolloutIntake | None:
        """Where rollouts come in; None before `start`."""
        return self._intake

    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """Takes what is in the queue; now and then looks after the actors."""
        # not only while waiting: the others may be fast enough that a dead actor is never missed
        if time.monotonic() >= self._next_look:
            self._look_after()
        return self._fresh(self._arrivals.get(max_trajectories, 0.0))

    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Waits for rollouts, and says for whom."""
        piece = self.poll_slice(max_trajectories)
        if piece is not None:
            return piece
        deadline = time.monotonic() + self.collect_timeout_s
        with self.waiting.waiting_for("rollouts"):
            while True:
                self._look_after()
                piece = self._fresh(self._arrivals.get(max_trajectories, _LOOK_S, enough=enough))
                if piece is not None:
                    return piece
                reason = self.explain_wait()
                self.waiting.explain(reason)
                if time.monotonic() > deadline:
                    raise CollectTimeoutError(
                        f"no rollout for {self.collect_timeout_s:.0f} s: the learner waits for {reason}"
                    )

    def drops(self, rollout: Rollout, n_trajectories: int) -> bool:
        """Whether a rollout is older than `max_policy_lag` allows, or was played for an earlier learner; counts it.

        Any thread may ask.

        Args:
            rollout: The rollout.
            n_trajectories: How many of its trajectories are at stake.
        """
        policy_lag = self.policy_version - rollout.policy_version
        return self._stale.drops(n_trajectories, policy_lag=max(0, policy_lag) if self._keeps_newer else policy_lag)

    def explain_wait(self) -> str:
        """Which actors are waited for, and what to do about it."""
        if self.durable is not None and (problem := self.durable.problem()):
            return problem
        return explain_wait(self.actor_infos, self.addresses, n_in_step=self._n_in_step)

    def _fresh(self, piece: RolloutSlice | None) -> RolloutSlice | None:
        """None for what `drops` says is stale; whatever it says, the rollout has been taken."""
        if piece is None:
            return None
        if self._registry is not None:
            self._registry.taken(piece.rollout)
        if self.drops(piece.rollout, piece.n_trajectories):
            self.covered([piece.name])
            return None
        return piece

    def _look_after(self) -> None:
        self._next_look = time.monotonic() + _LOOK_S
        if self.interrupted:
            raise CollectInterruptedError("collecting was interrupted: training is to end")
        self._look_after_actors()

    def _look_after_actors(self) -> None:
        """Called while waiting; raises if the actors cannot go on.

        Raises:
            ActorFailedError: An actor failed, and that is not to be survived.
        """

    def _note_exit(self, actor_id: str, report: str) -> None:
        """Notes that an actor that was started here has ended, whatever its stream says."""
        if self._registry is not None:
            self._registry.lost(actor_id, report.splitlines()[0])
