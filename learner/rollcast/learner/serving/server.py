"""Serves actors between `start` and `stop`: the registry, the intake, the policies and the servers of one learner."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.history.events import forget_event
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.evaluations import EvaluatedPolicy, Evaluations
from rollcast.learner.serving.intake import RolloutIntake
from rollcast.learner.serving.publisher import PolicyPublisher
from rollcast.learner.serving.registry import ActorRegistry
from rollcast.learner.serving.rounds import Rounds
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.learner.serving.stream import WriteAheadLog
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.history.service import HistorySource
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.opponents import with_opponents
from rollcast.services.policies.policies import PolicyState
from rollcast.services.rendezvous import Announcement, announced
from rollcast.services.replay.service import ReplaySource
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.rollouts.size import check_rollout_size
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.server import GrpcServer, make_server
from rollcast.services.spaces.codec import check_spaces_travel
from rollcast.services.status.service import LearnerControl


class Endpoint(NamedTuple):
    """An address to listen at, and its requirements for clients.

    Attributes:
        address: The address.
        security: The credentials that clients must present.
        announcement: Tells other machines the address; None: no file is necessary.
    """

    address: str
    security: ServerSecurity
    announcement: Announcement | None = None


class ActorsWork(NamedTuple):
    """The work of all actors.

    Attributes:
        n_rollout_steps: T.
        envs_per_actor: The number of environments of an actor that takes the learner's number.
        seeds: The seeds of all actors.
        names: The names of local actors, by slot.
    """

    n_rollout_steps: int
    envs_per_actor: int
    seeds: ActorSeeds
    names: tuple[str, ...]

    def rollout_shape(self, policy: TorchPolicy) -> RolloutShape:
        """Returns the shape of the rollouts of an actor that takes the learner's number of environments."""
        return RolloutShape.played_with(policy.spec, policy.spaces, self.n_rollout_steps, self.envs_per_actor)


class EarlierLearner(NamedTuple):
    """The state that an earlier learner of the run left.

    Attributes:
        policy_version: The newest published version; 0 if there was no earlier learner.
        actors: The state of its actors; see `ActorRegistry.state`.
    """

    policy_version: int
    actors: Mapping[str, Mapping[str, Any]]


class ActorServer:
    """The parts that serve actors between one `start` and the next `stop`. Any thread may read its attributes.

    Attributes:
        registry: The actors that have joined.
        publisher: Publishes policies.
        intake: Receives rollouts.
        is_open: True until `close`.

    Args:
        policy: The policy; its weights are the first published version.
        work: The work of all actors.
        destination: Takes accepted rollouts.
        limits: The limits for clients.
        credit_lag: See `CreditRule`.
        in_step: See `CreditRule`.
        rounds: See `CreditRule`.
        durable: Keeps rollouts on the disk before they are acknowledged; None for no log.
        evaluations: See `ServingOptions`.
        earlier: The state that an earlier learner of the run left.
        progress: The progress of training, in [0, 1], for the first version.
        run_history: See `ServingOptions`.
        assignment: See `ServingOptions`.
    """

    def __init__(
        self,
        policy: TorchPolicy,
        work: ActorsWork,
        destination: RolloutDestination,
        *,
        limits: Limits,
        credit_lag: int | None,
        in_step: bool,
        rounds: Rounds | None,
        durable: WriteAheadLog | None,
        evaluations: Evaluations | None,
        earlier: EarlierLearner,
        progress: float = 0.0,
        run_history: RunHistory | None = None,
        assignment: ActorAssignment = ONE_LEARNER,
    ) -> None:
        self.is_open = True
        self._limits = limits
        self._destination = destination
        self._evaluations = evaluations
        self._servers: list[GrpcServer] = []
        self._announced = contextlib.ExitStack()
        self._run_history = run_history
        self.registry = ActorRegistry(
            max_actors=limits.max_actors,
            join_lease_s=limits.join_lease_s,
            reserved_names=work.names,
            note=forget_event if run_history is None else run_history.note,
            assignment=assignment,
            in_step=in_step,
        )
        self.registry.load_state(earlier.actors)
        self.publisher = publisher = PolicyPublisher(
            policy.spaces,
            policy.spec,
            seed=work.seeds.run_seed,
            first_version=earlier.policy_version + 1,
            every_version=in_step,
        )
        self._rounds = rounds
        self.publish(policy.state_arrays(), progress)
        # A policy that cannot be published should fail here, and not at the first update.
        self.publisher.settle()
        self.intake = RolloutIntake(
            self.registry,
            destination,
            seeds=work.seeds,
            rollout_shape=work.rollout_shape(policy),
            policy=policy.spec,
            rule=CreditRule(
                policy_version=lambda: publisher.version,
                credit_lag=credit_lag,
                in_step=in_step,
                rounds=rounds,
                want_policy=publisher.want,
                take_policy=publisher.take,
                sent_version=publisher.sent_version,
                pause_policies=publisher.pause,
            ),
            durable=durable,
            evaluations=evaluations,
            max_rollout_bytes=limits.max_rollout_bytes,
            run_history=run_history,
            assignment=assignment,
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses at which it listens, with the actual ports in place of port 0."""
        return tuple(server.address for server in self._servers)

    def listen(
        self,
        endpoints: Sequence[Endpoint],
        control: LearnerControl,
        replay: Mapping[str, ReplaySource] | None,
        history: HistorySource | None = None,
    ) -> None:
        """Starts a server at each endpoint.

        Args:
            endpoints: The endpoints.
            control: Answers `LearnerService`.
            replay: The buffers that `ReplayService` serves, by substep key; None serves none.
            history: Answers `HistoryService`; None: it is not served.

        Raises:
            AddressInUseError: Another process serves one of the addresses.
            ConfigurationError: An address cannot be bound, or is open to other machines without TLS and without
                permission.
        """
        for endpoint in endpoints:
            server = make_server(
                endpoint.address,
                sink=self.intake,
                source=self.publisher,
                control=control,
                replay=replay,
                history=history,
                evaluators=self._evaluations,
                relays=self.intake,
                limits=self._limits,
                security=endpoint.security,
            )
            server.start()
            self._servers.append(server)
            self._announced.enter_context(announced(server.address, endpoint.announcement))

    def publish(self, state: PolicyState, progress: float) -> None:
        """Publishes the next policy version. If actors play in rounds, the version's round begins."""
        version = self.publisher.publish(state, progress)
        if self._run_history is not None:
            self._run_history.published(version)
        if self._rounds is not None:
            self._rounds.begin(version)

    def replace(self, rollout: Rollout, n_trajectories: int) -> None:
        """If actors play in rounds, reopens places for trajectories that arrived but fill no batch.

        Ignores trajectories of an older policy, because their round is over.
        """
        if self._rounds is not None and rollout.policy_version == self.publisher.version:
            self._rounds.replace(n_trajectories)

    def pass_late_on(self) -> None:
        """If actors play in rounds, gives the places of late rollouts to other actors."""
        if self._rounds is not None:
            self._rounds.pass_late_on()

    def evaluate_newest(self, env_steps: int, opponents: Mapping[int, PolicyState]) -> None:
        """Requests an evaluation of the newest policy; see `DistributedActors.evaluate_newest`."""
        if self._evaluations is not None:
            # It is rarely due, so the wait for the encoder is rare, too.
            encoded, state = self.publisher.newest_with_state()
            policy = EvaluatedPolicy(
                version=encoded.version, env_steps=env_steps, state=state, opponents=tuple(opponents)
            )
            if opponents:
                encoded = encode_policy(encoded.version, with_opponents(state, opponents))
            self._evaluations.offer(policy, encoded)

    def end_training(self) -> None:
        """Tells the actors that training has ended, and refuses rollouts from now on. Still serves policies."""
        self.intake.end_training()
        self.publisher.end()
        if self._evaluations is not None:
            self._evaluations.end()
        self._destination.close()

    def close(self, *, training_goes_on: bool, grace_s: float) -> None:
        """Stops the servers.

        Args:
            training_goes_on: True: the streams break, and the actors wait for the next learner. False: the actors are
                told that training has ended.
            grace_s: The seconds that the server waits for streams to end by themselves.
        """
        self._announced.close()
        for server in self._servers:
            server.drain()
        if training_goes_on:
            self.intake.leave_waiting()
            self._destination.close()
        else:
            self.end_training()
        for server in self._servers:
            server.stop(grace_s)
        self._servers.clear()
        self.publisher.close()
        self.is_open = False


def check_sizes(policy: TorchPolicy, work: ActorsWork, limits: Limits, *, starts_actors: bool) -> None:
    """Checks that spaces and rollouts can be sent.

    Raises:
        InvalidSpaceError: A space exceeds a limit, or cannot be sent.
        LimitExceededError: The rollouts of local actors exceed `max_rollout_bytes`.
    """
    check_spaces_travel(policy.spaces)
    if starts_actors:
        # Actors that dial in may step fewer environments, so they are checked when they join.
        check_rollout_size(
            work.rollout_shape(policy),
            max_rollout_bytes=limits.max_rollout_bytes,
            advice="lower n_rollout_steps or envs_per_actor, or raise --limits.max-rollout-bytes",
        )
