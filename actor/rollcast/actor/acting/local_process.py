"""Runs an actor as a child process of the learner, over a unix socket. The actor ends with the learner.

`SubprocDistributedActors` runs this module in its child processes. The process launcher passes the environment factory.
All other data travels over the socket, as between machines.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from rollcast.actor.acting.evaluating import evaluate_until_stopped
from rollcast.actor.acting.loop import act_until_stopped, make_offer
from rollcast.actor.connection.base import ConnectionOptions
from rollcast.actor.connection.evaluator import EvaluatorConnection
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.environments.failures import EnvironmentFailedError
from rollcast.actor.environments.make import DEFAULT_STEP_TIMEOUT_S, EnvFactory
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import probe_spaces
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.services.errors import RollcastError, is_permanent, message_of
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.join import ActorRole
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.process.child_lines import write_to_parent
from rollcast.services.process.printable import log_to_stderr
from rollcast.services.process.stop_signals import ignore_terminal, safe_in_handlers
from rollcast.services.wire.allocator import reuse_large_buffers

if TYPE_CHECKING:
    from rollcast.actor.dialling.supply import DialIn, DialledSupply

logger = logging.getLogger(__name__)

# Seconds between two checks that the learner serves.
_LOOK_S = 0.05
# Time for a child to end after its learner has died, in seconds; then the process is ended.
_ORPHAN_GRACE_S = 2.0
# Training has priority over a local evaluator on the same core: this niceness gives the evaluator a tenth.
_EVALUATOR_NICE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalActorPlan:
    """The arguments of a local actor.

    Attributes:
        address: The learner's socket, `unix:/path`, the only file in its folder.
        actor_id: The actor's name.
        env_factory: Makes one environment.
        n_envs: The number of environments to step at once.
        network: The only policy network that the actor may build.
        n_threads: The number of threads for the policy's arithmetic.
        log_level: The lowest level that the actor logs to stderr.
        step_timeout_s: The longest duration of a step, in seconds.
        max_rollout_bytes: The learner's limit on the size of a rollout, in bytes.
        role: The actor's role.
        dial_in: The addresses and limits for environments that dial in, in place of `env_factory`.
        told: The write end of a pipe for the addresses at which these environments dial in, as text.
        stderr: The write end of a pipe for stderr, as in `write_to_parent`; None: the inherited stderr.
    """

    address: str
    actor_id: str
    env_factory: EnvFactory | None
    n_envs: int
    network: str
    n_threads: int = 1
    log_level: str = "WARNING"
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    max_rollout_bytes: int = DEFAULT_LIMITS.max_rollout_bytes
    role: ActorRole = ActorRole.ACT
    dial_in: "DialIn | None" = None
    told: Connection | None = None
    stderr: Connection | None = None


def run_local_actor(plan: LocalActorPlan, failures: Connection) -> None:
    """Runs an actor in the child process. Exits with 0, or sends the failure through `failures` and exits with 1.

    Args:
        plan: The arguments.
        failures: The write end of a pipe to the parent. If the actor fails, it writes one JSON object `{exception_type,
            message, traceback, is_permanent}`.
    """
    if plan.stderr is not None:
        write_to_parent(plan.stderr)
    stop = threading.Event()
    # Environments may start processes, which Python forbids in daemonic ones.
    multiprocessing.current_process().daemon = False
    # The learner decides when its actors end.
    ignore_terminal()
    with safe_in_handlers(stop.set) as set_stop:
        signal.signal(signal.SIGTERM, lambda number, frame: set_stop())
        _run(plan, stop, failures)


def _run(plan: LocalActorPlan, stop: threading.Event, failures: Connection) -> None:
    log_to_stderr(plan.log_level, name=plan.actor_id)
    threading.Thread(
        target=_end_with_parent, args=(stop, _socket_of(plan).parent), name="rollcast-orphan-watch", daemon=True
    ).start()
    limit_threads(plan.n_threads)
    reuse_large_buffers()
    try:
        if plan.role is ActorRole.EVALUATE:
            os.nice(_EVALUATOR_NICE)
            _evaluate(plan, stop, failures)
        elif plan.dial_in is not None:
            _serve(plan, plan.dial_in, stop, failures)
        else:
            _act(plan, stop, failures)
    except BaseException as error:  # noqa: BLE001 - every end of the process is reported to its parent
        failure = ActorFailure(
            exception_type=type(error).__name__, message=message_of(error), traceback=_traceback_for_people(error)
        )
        _report(failures, failure, permanent=is_permanent(error))
        if not stop.is_set():
            sys.exit(1)
    finally:
        failures.close()


def _report(failures: Connection, failure: ActorFailure, *, permanent: bool = False) -> None:
    report = dataclasses.asdict(failure) | {"is_permanent": permanent}
    with contextlib.suppress(OSError):  # the parent, which would read this, has ended
        failures.send_bytes(json.dumps(report).encode())


def _traceback_for_people(error: BaseException) -> str:
    """Returns the traceback of an environment's or unforeseen error; empty for rollcast's own errors."""
    if isinstance(error, EnvironmentFailedError):
        return error.exception_traceback
    return "" if isinstance(error, RollcastError) else "".join(traceback.format_exception(error))


def _evaluate(plan: LocalActorPlan, stop: threading.Event, failures: Connection) -> None:
    assert plan.env_factory is not None  # an evaluator never serves environments that dial in
    spaces = probe_spaces(plan.env_factory)
    offer = make_offer(spaces, 1, actor_id=plan.actor_id, network=plan.network, role=ActorRole.EVALUATE)
    with EvaluatorConnection(plan.address, offer, **_connection_options(plan, stop)) as connection:
        try:
            evaluate_until_stopped(
                plan.env_factory,
                spaces,
                connection,
                network=plan.network,
                stop=stop,
                on_hang=functools.partial(_end_process, failures),
                step_timeout_s=plan.step_timeout_s,
            )
        except RollcastError:
            if not stop.is_set():
                raise


def _end_process(failures: Connection, failure: ActorFailure) -> None:
    """Reports a hanging step to the parent, and ends this process."""
    _report(failures, failure)
    _end_now()


def _act(plan: LocalActorPlan, stop: threading.Event, failures: Connection) -> None:
    assert plan.env_factory is not None  # no environment dials in
    with EnvironmentSupply(plan.env_factory, plan.n_envs, step_timeout_s=plan.step_timeout_s) as environments:
        _act_with(environments, plan, stop, failures)


def _serve(plan: LocalActorPlan, dial_in: "DialIn", stop: threading.Event, failures: Connection) -> None:
    # imported here: a server, which other actors do not need
    from rollcast.actor.dialling.supply import DialledSupply

    with DialledSupply(dial_in, plan.n_envs, stall_s=plan.step_timeout_s) as environments:
        if plan.told is not None:
            plan.told.send_bytes(environments.addresses.encode())
        environments.serve(
            functools.partial(_act_with, environments, plan, stop, failures), is_active=lambda: not stop.is_set()
        )


def _act_with(
    environments: "EnvironmentSupply | DialledSupply", plan: LocalActorPlan, stop: threading.Event, failures: Connection
) -> bool:
    """Joins and acts; returns whether training has ended."""
    offer = make_offer(environments.spaces, environments.n_envs, actor_id=plan.actor_id, network=plan.network)
    with LearnerConnection(plan.address, offer, **_connection_options(plan, stop)) as connection:
        try:
            act_until_stopped(
                environments,
                connection,
                network=plan.network,
                stop=stop,
                on_hang=functools.partial(_end_process, failures),
                step_timeout_s=plan.step_timeout_s,
                max_rollout_bytes=plan.max_rollout_bytes,
            )
        except RollcastError:
            if not stop.is_set():
                raise
        return connection.ended


def _connection_options(plan: LocalActorPlan, stop: threading.Event) -> ConnectionOptions:
    """Returns the options of the connection to the parent, which may need minutes before it serves.

    Until then the actor makes no attempt: the errors of an attempt would advise starting a learner. The actor waits
    without a limit, because it ends with its parent. If the actor cannot reconnect for 30 s, it ends, and its parent
    restarts it.
    """
    return {
        "connect_timeout_s": math.inf,
        "reconnect_timeout_s": 30.0,
        "stop": stop,
        "is_child": True,
        "on_attempt": functools.partial(_await_server, _socket_of(plan), stop),
    }


def _socket_of(plan: LocalActorPlan) -> Path:
    return Path(plan.address.removeprefix("unix:"))


def _await_server(socket: Path, stop: threading.Event) -> None:
    """Waits until the learner serves, or this process must end."""
    if not socket.exists():
        logger.info("the learner that started this actor does not serve yet")
        while not socket.exists() and not stop.wait(_LOOK_S):
            pass


def _end_with_parent(stop: threading.Event, socket_dir: Path) -> None:
    """Thread: ends this process when the learner's process has ended, even if the environment hangs."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    stop.set()
    # A learner that was killed could not remove its socket.
    shutil.rmtree(socket_dir, ignore_errors=True)
    watchdog = threading.Timer(_ORPHAN_GRACE_S, _end_now)
    watchdog.daemon = True
    watchdog.start()


def _end_now() -> None:
    """Ends this process and the processes that its environments have started with multiprocessing."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)
