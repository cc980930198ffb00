"""`rollcast serve-policy`: serves the policy of a run."""

import contextlib
import logging
import signal
import threading
from collections.abc import Sequence
from typing import IO, NoReturn

from rollcast.learner.commands.signals import stop_on_signals
from rollcast.services.errors import RefusedError
from rollcast.services.metrics.families import Families
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.process.periodic import PeriodicThread
from rollcast.services.process.stop_signals import safe_in_handlers
from rollcast.services.rendezvous import announced
from rollcast.services.server.policy import make_policy_server
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.version import software_version
from rollcast.tools.policy_server.followed import FollowedPolicy
from rollcast.tools.policy_server.settings import ServePolicySettings

logger = logging.getLogger(__name__)

# Seconds that open calls may take to end after SIGTERM.
_GRACE_S = 5.0


def serve_policy(settings: ServePolicySettings, output: IO[str]) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code: 0, or 130 after Ctrl-C.

    Raises:
        ConfigurationError: There is no such policy, or the policy, a certificate or an address cannot be used.
        AddressInUseError: Another server has the address.
    """
    del output  # it logs
    stop = threading.Event()
    with (
        safe_in_handlers(stop.set) as set_stop,
        stop_on_signals(set_stop) as received,
        contextlib.ExitStack() as stack,
    ):
        policy = FollowedPolicy(settings.run, name=settings.saved_policy, network=settings.network, seed=settings.seed)
        stack.callback(policy.publisher.end)
        if not settings.follow:
            policy.publisher.end()
        control = PolicyControl(policy, str(settings.run), follows=settings.follow)
        server = make_policy_server(
            settings.address,
            source=policy.publisher,
            control=control,
            limits=settings.server_limits(),
            security=settings.server_security(),
        )
        server.start()
        stack.callback(server.stop, _GRACE_S)
        stack.enter_context(announced(server.address, settings.announcement()))
        stack.enter_context(served_metrics(settings.metrics_address, control.collect, logger.info))
        if settings.follow:
            stack.enter_context(PeriodicThread(policy.look, settings.follow_interval_s, name="follow"))
        logger.info(
            "serving version %d of the policy of %s at %s", policy.saved.policy_version, settings.run, server.address
        )
        stop.wait()
    return 130 if signal.SIGINT in received else 0


class PolicyControl:
    """Reports on the served policy, and refuses all control: a `rollcast.services.status.service.LearnerControl`.

    Args:
        policy: The policy.
        run_dir: The run directory, or the file, of the policy.
        follows: True: newer policies may follow.
    """

    def __init__(self, policy: FollowedPolicy, run_dir: str, *, follows: bool) -> None:
        self._policy = policy
        self._run_dir = run_dir
        self._phase = Phase.TRAINING if follows else Phase.FINISHED

    def describe(self) -> LearnerDescription:
        """Describes the spaces and the policy; this server does not learn."""
        return LearnerDescription(
            spaces=self._policy.spaces,
            policy=self._policy.saved.spec,
            n_rollout_steps=0,
            batch_size=0,
            n_envs=0,
            algorithm="",
            software_version=software_version(),
        )

    def status(self) -> LearnerStatus:
        """Returns the served version, and the time of its actions."""
        saved = self._policy.saved
        return LearnerStatus(
            phase=self._phase,
            env_steps=saved.env_steps,
            policy_version=saved.policy_version,
            mean_return=saved.mean_return,
            run_dir=self._run_dir,
            software_version=software_version(),
            acts=self._policy.publisher.act_status(),
        )

    def collect(self) -> Families:
        """Returns the status as metrics, for Prometheus."""
        acts, families = self._policy.publisher.act_status(), Families()
        families.gauge("policy_version", "Version of the policy that is served.", self._policy.saved.policy_version)
        families.counter("act_calls", "Calls of Act that were answered.", acts.calls)
        families.counter("act_observations", "Observations in these calls.", acts.observations)
        families.counter("act_forward_passes", "Forward passes for these calls.", acts.forward_passes)
        for quantile, seconds in (("0.5", acts.p50_s), ("0.99", acts.p99_s)):
            families.gauge("act_seconds", "Time to answer a call, of the last 1,024.", seconds, {"quantile": quantile})
        return families

    def actors(self) -> Sequence[ActorInfo]:
        """Returns no actors."""
        return ()

    def pause(self) -> NoReturn:
        """Refuses."""
        self._refuse("pause")

    def resume(self) -> NoReturn:
        """Refuses."""
        self._refuse("resume")

    def save_checkpoint(self) -> NoReturn:
        """Refuses."""
        self._refuse("save a checkpoint")

    def request_stop(self) -> NoReturn:
        """Refuses, because clients that may act should not end the service."""
        self._refuse("stop")

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise RefusedError(
            f"cannot {what}: this process serves a saved policy, and trains none; expected a learner; ask the learner"
        )
