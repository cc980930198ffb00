"""`rollcast train`: trains with a learner and actors on this machine."""

import dataclasses
from collections.abc import Callable
from functools import partial

from rich.console import Console

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.dial_in import DialInActor, DialInDistributedActors
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.running import run_and_report
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_checks import check_places, check_settings
from rollcast.learner.training.run_parts import actors_batch_size
from rollcast.learner.training.training_run import MakeActors, training_run
from rollcast.learner.writers.console import print_above
from rollcast.services.spaces.spaces import EnvironmentSpaces


def train(
    settings: TrainSettings,
    console: Console,
    *,
    local_address: str | None = None,
    link: Callable[[], str] | None = None,
) -> int:
    """Trains until the end and returns the exit code.

    Args:
        settings: The settings.
        console: The console for the view and the summary.
        local_address: An additional address, the unix socket of a dashboard on this machine; None: none.
        link: Waits until the dashboard is served, and returns its link; None: no dashboard.

    Raises:
        RollcastError: If training cannot start or continue.
    """
    # Refuses wrong certificates and tokens, settings that exclude each other, and places that are taken, before the
    # environment is made or waited for.
    settings.server_security()
    check_settings(settings)
    check_places(settings)
    if settings.serve_environments is not None:
        return _train_with_those_that_dial_in(settings, console, local_address=local_address, link=link)
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
    spaces = probe_spaces(env_factory, travel=settings.actor_kind == "subprocess")
    return _train(settings, console, spaces, make_actors, n_processes, link)


def _train_with_those_that_dial_in(
    settings: TrainSettings, console: Console, *, local_address: str | None, link: Callable[[], str] | None
) -> int:
    """Trains with one actor on this machine, at which environments dial in. The first one determines the spaces."""
    with DialInActor(
        settings.dial_in(),
        envs_per_actor=settings.envs_per_actor,
        announce=partial(print_above, console),
        network=settings.network,
        start_method=settings.start_method,
        on_actor_failure=settings.on_actor_failure,
        max_restarts=settings.max_restarts,
        step_timeout_s=settings.step_timeout_s,
        limits=settings.server_limits(),
        log_level=settings.log_level,
    ) as actor:

        def make_actors(policy: TorchPolicy, serving: ServingOptions) -> DistributedActors:
            return DialInDistributedActors(
                actor,
                policy,
                settings.n_rollout_steps,
                actors_batch_size(settings, policy.spaces, 1),
                settings.queue_out_of_sync_factor,
                seed=settings.seed,
                serving=dataclasses.replace(serving, local_address=local_address),
            )

        spaces = actor.wait_for_spaces(settings.collect_timeout_s)
        return _train(settings, console, spaces, make_actors, 1, link)


def _train(
    settings: TrainSettings,
    console: Console,
    spaces: EnvironmentSpaces,
    make_actors: MakeActors,
    n_processes: int,
    link: Callable[[], str] | None,
) -> int:
    with training_run(
        settings, spaces, make_actors, n_local_actors=n_processes, announce=partial(print_line, console.file)
    ) as run:
        if link is not None:
            print_line(console.file, f"the dashboard is at {link()}")
        return run_and_report(
            run, settings, console, plays_here=settings.serve_environments is None, resume_with="train"
        )
