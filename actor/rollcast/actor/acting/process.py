"""Runs an actor as a process: reads the settings, handles signals, and acts in one run after another."""

import contextlib
import functools
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.actor.acting.evaluating import evaluate_until_stopped
from rollcast.actor.acting.heartbeat import Heartbeat
from rollcast.actor.acting.loop import act_until_stopped, make_offer
from rollcast.actor.acting.step_watchdog import GRACE_S
from rollcast.actor.connection.evaluator import EvaluatorConnection
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.settings import ActorSettings
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import probe_spaces
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.services.errors import ConfigurationError, RollcastError
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.join import ActorRole
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.policies.encodings import ENCODINGS
from rollcast.services.process.exit_codes import bad_settings_exit_code
from rollcast.services.process.output import write_error
from rollcast.services.process.printable import log_to_stderr, printable_lines
from rollcast.services.process.stop_signals import safe_in_handlers, stop_signals
from rollcast.services.security.security import ClientSecurity
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.wire.allocator import reuse_large_buffers

if TYPE_CHECKING:
    from rollcast.actor.dialling.supply import DialledSupply
    from rollcast.actor.inference.central import CentralInference

logger = logging.getLogger("actor")

# Seconds between two attempts to join the next run.
_NEXT_RUN_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `python -m rollcast.actor`: acts until training ends or the process receives a signal.

    Returns:
        The exit code: 0 after the end of training or a signal, 1 after an error, 2 for wrong settings.
    """
    program = "python -m rollcast.actor"
    try:
        settings = ActorSettings.from_command_line(program, sys.argv[1:] if arguments is None else arguments)
        log_to_stderr(settings.log_level)
        return act(settings, sys.stderr, program=program)
    except ConfigurationError as error:
        write_error(printable_lines(f"{program}: {error}") + "\n")
        return bad_settings_exit_code(os.environ)


def act(settings: ActorSettings, output: IO[str], *, program: str = "rollcast actor") -> int:
    """Runs an actor until training ends or the process receives a signal.

    Args:
        settings: The settings.
        output: Not used, because an actor writes to the log.
        program: The name of the command, for messages.

    Returns:
        The exit code: 0 after the end of training or a signal, 1 after an error. The error is printed to stderr; only
        the learner receives the traceback.

    Raises:
        ConfigurationError: See `run_actor`.
    """
    del output
    stop = threading.Event()
    reason = ""
    try:
        # It ends when the log has every signal, so that these lines come before the last one.
        with stop_on_signals(stop):
            run_actor(settings, stop)
    except ConfigurationError:
        raise
    except RollcastError as error:
        if not stop.is_set():
            write_error(printable_lines(f"{program}: {type(error).__name__}: {error}") + "\n")
            return 1
        reason = f": {error}"
    logger.info("stopped%s" if stop.is_set() else "training has ended%s", reason)
    return 0


@contextlib.contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Sets an event on SIGTERM, Ctrl-C or SIGHUP, and logs the signal.

    After the block, these signals have no effect, because the process ends by itself.
    """

    def stop_and_log(number: int) -> None:
        # first: stderr may block
        stop.set()
        logger.info("%s: stopping after this step", signal.Signals(number).name)

    with safe_in_handlers(stop_and_log) as on_signal:
        for number in stop_signals():
            signal.signal(number, lambda number, frame: on_signal(number))
        yield


def run_actor(settings: ActorSettings, stop: threading.Event) -> None:
    """Acts until training ends or `stop` is set. With `wait_for_next_run`, also joins all later runs.

    Raises:
        ConfigurationError: The environment cannot be made from the settings, or a certificate or token cannot be used.
        RollcastError: The learner refused the actor, or cannot be reached again.
    """
    security = settings.client_security()
    dial_in = None if settings.serve_environments is None else settings.dial_in()
    device = settings.acting_device()
    limit_threads(settings.torch_threads)
    reuse_large_buffers()
    step_timeout_s = settings.step_timeout_s
    heartbeat_file = Path(settings.heartbeat_file) if settings.heartbeat_file else None
    with (
        # The watchdog ends a process whose step hangs, and must report first.
        Heartbeat(heartbeat_file, patience_s=step_timeout_s + 2 * GRACE_S) as heartbeat,
        contextlib.ExitStack() as stack,
    ):
        metrics = ActorMetrics()
        stack.enter_context(served_metrics(settings.metrics_address, metrics.collect, logger.info))
        in_one_run: Callable[..., bool]
        if dial_in is not None:
            # imported here: a server, which other actors do not need
            from rollcast.actor.dialling.supply import DialledSupply
            from rollcast.actor.inference.engine import InferenceEngine
            from rollcast.actor.inference.followed_policies import FollowedPolicies

            policies = FollowedPolicies(settings.learner_address, security, ENCODINGS[settings.policy_encoding])
            engine = stack.enter_context(InferenceEngine(policies, allowed_network=settings.network, device=device))
            dialled = stack.enter_context(
                DialledSupply(dial_in, settings.envs_per_actor, stall_s=step_timeout_s, inference=engine)
            )
            logger.info("environments may dial in at %s", dialled.addresses)
            metrics.serves(dialled, engine)
            in_one_run = functools.partial(
                _serve_in_one_run, settings, security, dialled, heartbeat, metrics, stop, device=device
            )
        elif settings.role == "evaluate":
            env_factory = settings.env_factory()
            spaces = probe_spaces(env_factory)
            in_one_run = functools.partial(
                _evaluate_in_one_run, settings, security, env_factory, spaces, heartbeat, metrics, stop
            )
        else:
            environments = stack.enter_context(
                EnvironmentSupply(settings.env_factory(), settings.envs_per_actor, step_timeout_s=step_timeout_s)
            )
            central = None
            if settings.inference_address is not None:
                from rollcast.actor.inference.central import CentralInference

                central = stack.enter_context(
                    CentralInference(
                        settings.inference_address, timeout_s=settings.inference_timeout_s, security=security
                    )
                )
                metrics.asks(central)
            in_one_run = functools.partial(
                _act_in_one_run,
                *(settings, security, environments, heartbeat, metrics, stop),
                device=device,
                central=central,
            )
        connect_timeout_s = settings.connect_timeout_s
        while in_one_run(connect_timeout_s=connect_timeout_s):
            if not settings.wait_for_next_run:
                return
            if math.isfinite(connect_timeout_s):
                logger.info("training has ended: waiting for the learner's next run")
            # The next run may start at any time.
            connect_timeout_s = math.inf
            heartbeat.beat()
            if stop.wait(_NEXT_RUN_S):
                return


def _serve_in_one_run(
    settings: ActorSettings,
    security: ClientSecurity,
    environments: "DialledSupply",
    heartbeat: Heartbeat,
    metrics: ActorMetrics,
    stop: threading.Event,
    *,
    device: str | None,
    connect_timeout_s: float,
) -> bool:
    """Acts while clients are connected; returns True if training has ended."""

    def is_active() -> bool:
        heartbeat.beat()
        return not stop.is_set()

    act = functools.partial(
        _act_in_one_run,
        *(settings, security, environments, heartbeat, metrics, stop),
        device=device,
        connect_timeout_s=connect_timeout_s,
    )
    return environments.serve(act, is_active=is_active, stays=settings.wait_for_next_run)


def _act_in_one_run(
    settings: ActorSettings,
    security: ClientSecurity,
    environments: "EnvironmentSupply | DialledSupply",
    heartbeat: Heartbeat,
    metrics: ActorMetrics,
    stop: threading.Event,
    *,
    device: str | None,
    central: "CentralInference | None" = None,
    connect_timeout_s: float,
) -> bool:
    """Joins and acts; returns True if training has ended."""
    offer = make_offer(
        environments.spaces,
        environments.n_envs,
        actor_id=settings.actor_id,
        network=settings.network,
        plays_by_clock=(settings.inference_address or settings.serve_environments) is not None,
    )
    with LearnerConnection(
        settings.learner_address,
        offer,
        security=security,
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=settings.reconnect_timeout_s,
        on_attempt=heartbeat.beat,
        encodings=ENCODINGS[settings.policy_encoding],
        stop=stop,
    ) as connection:
        act_until_stopped(
            environments,
            connection,
            network=settings.network,
            stop=stop,
            on_hang=_end_process,
            step_timeout_s=settings.step_timeout_s,
            max_rollout_bytes=settings.max_rollout_bytes,
            heartbeat=heartbeat,
            metrics=metrics,
            device=device,
            central=central,
        )
        return connection.ended


def _evaluate_in_one_run(
    settings: ActorSettings,
    security: ClientSecurity,
    env_factory: EnvFactory,
    spaces: EnvironmentSpaces,
    heartbeat: Heartbeat,
    metrics: ActorMetrics,
    stop: threading.Event,
    *,
    connect_timeout_s: float,
) -> bool:
    """Joins and evaluates; returns True if training has ended."""
    offer = make_offer(spaces, 1, actor_id=settings.actor_id, network=settings.network, role=ActorRole.EVALUATE)
    with EvaluatorConnection(
        settings.learner_address,
        offer,
        security=security,
        connect_timeout_s=connect_timeout_s,
        reconnect_timeout_s=settings.reconnect_timeout_s,
        on_attempt=heartbeat.beat,
        encodings=ENCODINGS[settings.policy_encoding],
        stop=stop,
    ) as connection:
        evaluate_until_stopped(
            env_factory,
            spaces,
            connection,
            network=settings.network,
            stop=stop,
            on_hang=_end_process,
            step_timeout_s=settings.step_timeout_s,
            heartbeat=heartbeat,
            metrics=metrics,
        )
        return connection.ended


def _end_process(failure: ActorFailure) -> None:
    """Logs the failure and ends this process: Python cannot end the hanging thread alone."""
    logger.error("%s: %s\n%s", failure.exception_type, failure.message, failure.traceback)
    os._exit(1)
