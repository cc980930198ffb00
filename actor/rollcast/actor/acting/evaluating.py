"""Runs an evaluator's loop: wait for a policy, play whole episodes, report the returns."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.acting.failures import describe_failure, step_timeout
from rollcast.actor.acting.heartbeat import Heartbeat
from rollcast.actor.acting.step_watchdog import GRACE_S, StepWatchdog
from rollcast.actor.connection.evaluator import EvaluatorConnection, GivenPolicy
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory, drops_episodes
from rollcast.actor.playing.evaluate import Evaluation, evaluate_against, evaluate_as_planned
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.services.errors import LearnerUnreachableError, TrainingEndedError
from rollcast.services.joining.activity import ActingState, ActorFailure
from rollcast.services.joining.evaluation import EvaluationPlan, PlayedEpisodes
from rollcast.services.policies.opponents import without_opponents
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

# Seconds between two checks of a waiting evaluator for the stop.
_WAIT_S = 1.0


class _StoppedError(Exception):
    """Ends the running episodes: the evaluator has to stop, or the report is no longer needed."""


def evaluate_until_stopped(
    env_factory: EnvFactory,
    spaces: EnvironmentSpaces,
    connection: EvaluatorConnection,
    *,
    network: str,
    stop: threading.Event,
    on_hang: Callable[[ActorFailure], None],
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    heartbeat: Heartbeat | None = None,
    metrics: ActorMetrics | None = None,
) -> None:
    """Evaluates policies until `stop` is set or training has ended.

    Args:
        env_factory: Makes the environment, one for each policy.
        spaces: The environment's spaces.
        connection: The connection to the learner, before `join`. The caller closes it.
        network: The policy network with which this process was started. It imports no other network.
        stop: Ends the loop after the running step.
        on_hang: See `act_until_stopped`.
        step_timeout_s: The longest duration of a step or a reset, in seconds.
        heartbeat: Receives a beat in every iteration of the loop and every step; None: no heartbeat.
        metrics: Counts the work for Prometheus; None: no metrics.

    Raises:
        RollcastError: The learner refused the evaluator, or cannot be reached again.
        Exception: The exception of the environment or the policy, after a report to the learner.
    """
    heartbeat = heartbeat or Heartbeat(None, patience_s=step_timeout_s)
    metrics = metrics or ActorMetrics()
    try:
        agreement = connection.join()
    except TrainingEndedError as error:
        logger.info("there is nothing to do: %s", error)
        return
    logger.info("joined as evaluator %s, incarnation %d", agreement.actor_id, agreement.incarnation)

    metrics.joined(agreement.actor_id, 1)

    def hangs(seconds: float, stack: str) -> None:
        failure = step_timeout(seconds, step_timeout_s, stack, agreement.env_seed)
        connection.fail(failure)
        connection.close()
        on_hang(failure)

    make = partial(
        make_policy,
        # The learner's network takes the leaves in the learner's order.
        agreement.spaces or spaces,
        agreement.policy,
        seed=agreement.agent_seed,
        allowed_network=network,
    )
    try:
        policy = make()
        with StepWatchdog(step_timeout_s + min(step_timeout_s, GRACE_S), hangs) as watchdog:

            def on_step() -> None:
                heartbeat.beat()
                watchdog.beat()
                if stop.is_set() or connection.ended:
                    raise _StoppedError  # noqa: TRY301 - only an exception ends the episodes from within

            while not (stop.is_set() or connection.ended):
                heartbeat.beat()
                metrics.clock.enter(ActingState.WAITING_FOR_POLICY)
                given = connection.wait_for_policy(_WAIT_S)
                if given is not None:
                    metrics.clock.enter(ActingState.ACTING)
                    _evaluate(env_factory, policy, make, given, connection, on_step, watchdog)
    except _StoppedError:
        pass
    except Exception as error:
        if not isinstance(error, LearnerUnreachableError):
            connection.fail(describe_failure(error, agreement.env_seed))
        raise
    finally:
        metrics.clock.enter(ActingState.CONNECTING)


def _evaluate(
    env_factory: EnvFactory,
    policy: Policy,
    make_opponent: Callable[[], Policy],
    given: GivenPolicy,
    connection: EvaluatorConnection,
    on_step: Callable[[], None],
    watchdog: StepWatchdog,
) -> None:
    """Plays the episodes of the plan with a policy, and reports them."""
    plan = connection.agreement.evaluation
    assert isinstance(plan, EvaluationPlan), "the codec refuses agreements without one"
    state, opponents = without_opponents(given.state)
    policy.load(given.version, state)
    began = time.monotonic()
    evaluations: tuple[Evaluation, ...] = ()
    try:
        if plan.opponents:
            against = evaluate_against(env_factory, policy, opponents, plan, make_opponent, on_step=on_step)
            evaluations = tuple(against.values())
        else:
            evaluations = tuple(evaluate_as_planned(env_factory, policy, plan, on_step=on_step).values())
    except EnvironmentFailedError as error:
        if not drops_episodes(env_factory) or error.report.doing != "step":
            raise
        # Actors continue with such an environment, too.
        logger.warning("no episode has ended with version %d: %s", given.version, error)
    finally:
        watchdog.rest()
    played = PlayedEpisodes(
        policy_version=given.version,
        returns=tuple(chain.from_iterable(evaluation.returns for evaluation in evaluations)),
        lengths=tuple(chain.from_iterable(evaluation.lengths for evaluation in evaluations)),
        counts=tuple(len(evaluation.returns) for evaluation in evaluations),
        seconds=time.monotonic() - began,
        actions=plan.actions,
    )
    if not connection.report(given, played):
        logger.info("dropped the evaluation of version %d: the learner of this version has ended", given.version)
