"""`rollcast train`: trains with a learner and actors on this machine."""

import dataclasses
import tempfile
from collections.abc import Callable
from functools import partial

from rich.console import Console

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.running import run_and_report
from rollcast.learner.dashboard.local import LocalDashboard, LocalDashboardPlan
from rollcast.learner.settings.dashboard import check_page_address
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_parts import actors_batch_size
from rollcast.learner.training.training_run import training_run
from rollcast.services.errors import ConfigurationError
from rollcast.services.process.installation import require_extra
from rollcast.services.process.socket_paths import short_temporary_paths


def train(settings: TrainSettings, console: Console) -> int:
    """Trains until the end and returns the exit code.

    Raises:
        RollcastError: If training cannot start or go on.
    """
    # Refuses wrong certificates and tokens before the environment is made.
    settings.server_security()
    if not settings.dashboard:
        return _train(settings, console)
    with short_temporary_paths():
        sockets = tempfile.TemporaryDirectory(prefix="rollcast-")
    with sockets as folder:
        plan = _dashboard_plan(settings, f"unix:{folder}/learner.sock")
        # It starts on another core while this process makes the environment and the policy.
        with LocalDashboard(plan) as dashboard:
            return _train(settings, console, local_address=plan.learner_address, link=dashboard.link)


def _dashboard_plan(settings: TrainSettings, learner_address: str) -> LocalDashboardPlan:
    """Returns the arguments of the run's dashboard.

    Raises:
        ConfigurationError: The run cannot have a dashboard with these settings.
    """
    require_extra("dashboard", "rollcast train --dashboard")
    if settings.actor_kind == "sequential":
        raise ConfigurationError(
            "dashboard is set, and actor_kind is 'sequential', which serves nothing that a page could show; expected "
            "'subprocess'; leave one out"
        )
    check_page_address(settings.dashboard_address, insecure=settings.insecure)
    return LocalDashboardPlan(
        learner_address=learner_address,
        listen_address=settings.dashboard_address,
        # The socket asks for no token, and anyone on this machine may open the page.
        read_only=settings.tokens_file is not None,
        log_level=settings.log_level,
    )


def _train(
    settings: TrainSettings,
    console: Console,
    *,
    local_address: str | None = None,
    link: Callable[[], str] | None = None,
) -> int:
    env_factory = settings.env_factory()

    def make_actors(policy: TorchPolicy, serving: ServingOptions) -> DistributedActors:
        if settings.actor_kind == "sequential":
            return SequentialDistributedActors(
                env_factory,
                policy,
                settings.n_rollout_steps,
                settings.n_actors,
                actors_batch_size(settings, policy.spaces, settings.n_actors),
                envs_per_actor=settings.envs_per_actor,
                seed=settings.seed,
                evaluation=None if serving.evaluations is None else serving.evaluations.plan,
                deterministic=settings.deterministic,
            )
        return SubprocDistributedActors(
            env_factory,
            policy,
            settings.n_rollout_steps,
            settings.n_actors,
            actors_batch_size(settings, policy.spaces, settings.n_actors),
            settings.queue_out_of_sync_factor,
            settings.start_method,
            envs_per_actor=settings.envs_per_actor,
            seed=settings.seed,
            serving=dataclasses.replace(serving, local_address=local_address),
            # a restarted actor has other seeds
            on_actor_failure="fail" if settings.deterministic else settings.on_actor_failure,
            max_restarts=settings.max_restarts,
            step_timeout_s=settings.step_timeout_s,
            log_level=settings.log_level,
        )

    n_processes = settings.n_actors if settings.actor_kind == "subprocess" else 0
    with training_run(
        settings,
        probe_spaces(env_factory, travel=settings.actor_kind == "subprocess"),
        make_actors,
        n_local_actors=n_processes,
        announce=partial(print_line, console.file),
    ) as run:
        if link is not None:
            print_line(console.file, f"the dashboard is at {link()}")
        return run_and_report(run, settings, console)
