"""The options of all kinds of served actors: local processes, containers, and actors that dial in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rollcast.learner.devices.copier import Copier
from rollcast.learner.durable.rollouts import DurableRollouts
from rollcast.learner.history.run_history import RunHistory
from rollcast.learner.queueing.destination import RolloutDestination
from rollcast.learner.serving.assignment import ONE_LEARNER, ActorAssignment
from rollcast.learner.serving.evaluations import Evaluations
from rollcast.services.history.service import HistorySource
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.rendezvous import Announcement
from rollcast.services.replay.service import ReplaySource
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.status.service import LearnerControl


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """The options for serving actors, and the destination of their rollouts.

    Attributes:
        addresses: The addresses to listen at: `host:port` (port 0: any free one) or `unix:/path`. They serve the
            control API and actors on other machines. Local processes and containers use a further address.
        local_address: An additional address, `unix:/path`, for local processes such as a dashboard or ingest processes;
            None adds no address.
        max_actors: The largest number of living actors. Local actors count, and may always join.
        max_policy_lag: The age limit of trajectories in versions. Older trajectories are dropped, counted and logged;
            None drops none.
        bounded_staleness: True: actors wait for the newest policy before they start a rollout. False: they start with
            their present policy, which helps if policies take long to arrive. None: True for local actors, False for
            actors that dial in.
        on_policy: True: actors play each batch with the previous update's policy, and wait while the learner updates.
            No rollout is played ahead, and older trajectories are dropped. `max_policy_lag` and `bounded_staleness`
            have no effect.
        deterministic: True: actors play one rollout per update, in step, and a batch has the rollouts in slot order.
            The same seeds then give the same policies, regardless of the actors' speeds. `batch_size` must be a
            multiple of the trajectories of one actor.
        control: Answers `LearnerService`; None: status calls are answered, and control calls refused.
        history: Answers `HistoryService`; None: it is not served.
        run_history: Records the actors' activity, for `history`. None: no record, and actors do not report their time.
        security: The TLS and the tokens that clients need at `addresses`.
        collect_timeout_s: The longest wait for a rollout, in seconds. With `run_history`, actors report their work, and
            the time in which a connected actor plays a rollout does not count.
        limits: The limits for clients; `max_actors` above overrides `limits.max_actors`.
        replay: The replay buffers that `ReplayService` serves, by substep key; None serves none.
        assemble_ahead: True: a thread assembles the next batch while the trainer updates. It has no effect with
            `on_policy` or `deterministic`, where no rollout arrives during an update. None: True unless the learner
            computes on the CPU, where it brings no speed-up.
        destination: Takes the rollouts instead of the queue; None: the queue.
        durable: Keeps rollouts on the disk before they are acknowledged; None for no log.
        announcement: A file that tells other machines the server's address; None: no file. For one address only.
        evaluations: Sends work to evaluators and takes their reports. Local processes then include an evaluator. None:
            the learner evaluates no policy, and refuses evaluators.
        newest_version: Returns the newest policy version of all learners of a durable run, from this learner's.
        assignment: Assigns actors to the learners of the run, if it has several, or to ingest processes.
    """

    addresses: tuple[str, ...] = ()
    local_address: str | None = None
    max_actors: int = DEFAULT_LIMITS.max_actors
    max_policy_lag: int | None = None
    bounded_staleness: bool | None = None
    on_policy: bool = False
    deterministic: bool = False
    control: LearnerControl | None = None
    history: HistorySource | None = None
    run_history: RunHistory | None = None
    security: ServerSecurity = field(default=PLAIN_SERVER)
    announcement: Announcement | None = None
    collect_timeout_s: float = 600.0
    limits: Limits = field(default=DEFAULT_LIMITS)
    replay: Mapping[str, ReplaySource] | None = None
    assemble_ahead: bool | None = None
    destination: RolloutDestination | None = None
    durable: DurableRollouts | None = None
    evaluations: Evaluations | None = None
    newest_version: Callable[[int], int] = int
    assignment: ActorAssignment = ONE_LEARNER

    def assembles_ahead(self, copier: Copier, *, n_substeps: int) -> bool:
        """Returns whether the next batch is assembled while the trainer updates.

        Args:
            copier: Copies the batches to the learner's device.
            n_substeps: The number of substeps, which have separate batches.
        """
        # In step, and in rounds, no rollout arrives before the next policy. Stale trajectories cannot be removed from
        # several batches.
        is_limited = self.max_policy_lag is not None and n_substeps > 1
        is_wanted = not copier.shares_memory if self.assemble_ahead is None else self.assemble_ahead
        return is_wanted and not (self.deterministic or self.on_policy or is_limited)
