"""Runs an actor's loop: wait for credit, take the newest policy, collect a rollout, send it."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.acting.agreed_work import check_agreed_work
from rollcast.actor.acting.failures import describe_failure, step_timeout
from rollcast.actor.acting.heartbeat import Heartbeat
from rollcast.actor.acting.step_watchdog import GRACE_S, StepWatchdog
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.environments.device import device_of
from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.make import make_worker
from rollcast.services.errors import LearnerUnreachableError, TrainingEndedError
from rollcast.services.joining.activity import ActingState, ActorFailure
from rollcast.services.joining.join import ActorRole, JoinOffer
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.version import software_version

if TYPE_CHECKING:
    from rollcast.actor.dialling.supply import DialledSupply
    from rollcast.actor.inference.central import CentralInference

logger = logging.getLogger(__name__)

# Time for the last rollouts of a stopping actor to be acknowledged, in seconds.
DRAIN_TIMEOUT_S = 2.0

# Seconds between two checks of a waiting actor for the stop, and between two lines in its log.
_WAIT_S = 1.0
_REPORT_EVERY_S = 10.0


def act_until_stopped(
    environments: "EnvironmentSupply | DialledSupply",
    connection: LearnerConnection,
    *,
    network: str,
    stop: threading.Event,
    on_hang: Callable[[ActorFailure], None],
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    max_rollout_bytes: int = DEFAULT_LIMITS.max_rollout_bytes,
    heartbeat: Heartbeat | None = None,
    metrics: ActorMetrics | None = None,
    device: str | None = None,
    central: "CentralInference | None" = None,
) -> None:
    """Acts until `stop` is set, training has ended, or no client with environments has been connected for a while.

    Args:
        environments: The environments; the caller closes them.
        connection: The connection to the learner, before `join`. The caller closes it.
        network: The policy network with which this process was started. It imports no other network.
        stop: Ends the loop after the running step.
        on_hang: Ends the process after a step that takes too long, because Python cannot end the acting thread. Another
            thread calls it, after a report to the learner.
        step_timeout_s: The longest duration of a step or a reset, in seconds.
        max_rollout_bytes: The largest size of a rollout, in bytes. The actor refuses work with larger rollouts.
        heartbeat: Receives a beat in every iteration of the loop and every step; None: no heartbeat.
        metrics: Counts the work for Prometheus; None: no metrics.
        device: The device on which torch computes the policy; None: the environments' device, or the CPU.
        central: Central inference, if it is in use; None: this actor computes its policy itself.

    Raises:
        RollcastError: The learner refused the actor, or cannot be reached again.
        Exception: The exception of the environment or the policy, after a report to the learner.
    """
    heartbeat = heartbeat or Heartbeat(None, patience_s=step_timeout_s)
    metrics = metrics or ActorMetrics()
    connection.report_activity(metrics.activity)
    try:
        agreement = connection.join()
    except TrainingEndedError as error:
        logger.info("there is nothing to do: %s", error)
        return
    logger.info(
        "joined %s: slot %d, incarnation %d, %d environments",
        agreement.actor_id,
        agreement.slot,
        agreement.incarnation,
        agreement.n_envs,
    )
    metrics.joined(agreement.actor_id, agreement.n_envs)
    try:
        check_agreed_work(environments.spaces, agreement, max_rollout_bytes=max_rollout_bytes)
        vector_env = environments.take(agreement.n_envs)
        policy = make_policy(
            # The learner's network takes the leaves in the learner's order.
            agreement.spaces or environments.spaces,
            agreement.policy,
            seed=agreement.agent_seed,
            allowed_network=network,
            device=device_of(vector_env) or device,
            slot=agreement.slot,
        )
        if central is not None and device_of(vector_env) is None:  # simulators on a device act there, without copies
            policy = central.over(policy, agreement.policy, seed=agreement.agent_seed, slot=agreement.slot)
        worker = make_worker(
            vector_env,
            policy,
            agreement.n_rollout_steps,
            actor_id=agreement.actor_id,
            incarnation=agreement.incarnation,
            env_seed=agreement.env_seed,
            first_sequence=agreement.acknowledged_sequence + 1,
        )

        def hangs(seconds: float, stack: str) -> None:
            failure = step_timeout(seconds, step_timeout_s, stack, agreement.env_seed)
            connection.fail(failure)
            connection.close()
            on_hang(failure)

        # Environments in processes have the same limit. They know which of them hangs, so they must report first.
        with StepWatchdog(step_timeout_s + min(step_timeout_s, GRACE_S), hangs) as watchdog:
            _collect_and_send(
                worker,
                policy,
                connection,
                first_sequence=agreement.acknowledged_sequence + 1,
                stop=stop,
                heartbeat=heartbeat,
                watchdog=watchdog,
                metrics=metrics,
            )
    except Exception as error:
        if not isinstance(error, LearnerUnreachableError):
            connection.fail(describe_failure(error, agreement.env_seed))
        raise
    finally:
        metrics.clock.enter(ActingState.CONNECTING)
        left = connection.drain(DRAIN_TIMEOUT_S)
        if left and not connection.ended:
            logger.warning("%d rollouts were not acknowledged before the end", left)


def _collect_and_send(
    worker: Worker[Any],
    policy: Policy,
    connection: LearnerConnection,
    *,
    first_sequence: int,
    stop: threading.Event,
    heartbeat: Heartbeat,
    watchdog: StepWatchdog,
    metrics: ActorMetrics,
) -> None:
    def should_stop() -> bool:
        heartbeat.beat()
        watchdog.beat()
        return stop.is_set() or connection.ended

    sequence = first_sequence
    waiting_since = time.monotonic()
    next_report = waiting_since + _REPORT_EVERY_S
    while not should_stop():
        metrics.clock.enter(_waiting(connection, sequence))
        if not connection.wait_for_credit(sequence, _WAIT_S):
            if time.monotonic() > next_report and not connection.ended:
                next_report += _REPORT_EVERY_S
                logger.info(
                    "waiting for the learner to ask for rollout %d, %.0f s so far",
                    sequence,
                    time.monotonic() - waiting_since,
                )
            continue
        newest = connection.take_policy()
        if newest is not None and newest[0] != policy.version:
            metrics.clock.enter(ActingState.LOADING_POLICY)
            policy.load(newest.version, newest.state)
            metrics.loaded(policy.version)
        metrics.clock.enter(ActingState.ACTING)
        if newest is not None:
            worker.set_progress(newest.progress)
        worker.least_version = connection.min_policy_version
        rollout = worker.collect(should_stop)
        watchdog.rest()
        if rollout is None:
            break
        metrics.clock.enter(ActingState.SENDING)
        # Counted before `send`, because the learner may count the rollout before `send` returns.
        metrics.sent(rollout, dropped_episodes=worker.dropped_episodes)
        connection.send(rollout)
        sequence += 1
        waiting_since = time.monotonic()
        next_report = waiting_since + _REPORT_EVERY_S


def _waiting(connection: LearnerConnection, sequence: int) -> ActingState:
    """Returns the state that describes why the next rollout must wait."""
    if not connection.is_open:
        return ActingState.CONNECTING
    return ActingState.WAITING_FOR_POLICY if connection.has_credit(sequence) else ActingState.WAITING_FOR_CREDIT


def make_offer(
    spaces: EnvironmentSpaces,
    n_envs: int | None,
    *,
    actor_id: str,
    network: str,
    role: ActorRole = ActorRole.ACT,
    plays_by_clock: bool = False,
) -> JoinOffer:
    """Makes the offer with which an actor joins, with a new nonce.

    Args:
        spaces: The spaces of the actor's environments.
        n_envs: The number of environments that the actor steps; None: the learner decides.
        actor_id: The actor's name; empty: the learner chooses a name.
        network: The policy network with which the actor was started.
        role: The actor's role.
        plays_by_clock: Whether the content of the actor's rollouts depends on time.
    """
    return JoinOffer(
        actor_id=actor_id,
        process_nonce=secrets.randbits(64),
        spaces=spaces,
        n_envs=n_envs or 0,
        network=network,
        software_version=software_version(),
        role=role,
        plays_by_clock=plays_by_clock,
    )
