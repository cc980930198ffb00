"""`rollcast learner`: trains with the actors that connect to it."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rich.console import Console

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.checkpoints.resuming import compared_settings
from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.running import run_and_report
from rollcast.learner.history.events import NoteEvent
from rollcast.learner.ranks.rank_info import RankInfo
from rollcast.learner.ranks.ranks import ONE_RANK, Ranks, joined_ranks
from rollcast.learner.serving.assignment import ActorAssignment
from rollcast.learner.serving.first_actor import spaces_of_first_actor
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.training.run_checks import check_places, check_rank_settings, check_settings
from rollcast.learner.training.run_parts import actors_batch_size
from rollcast.learner.training.training_run import training_run
from rollcast.services.address import following_address


class Ingest(NamedTuple):
    """The ingest processes of a learner, to which it redirects its actors.

    Attributes:
        address: The learner's unix socket for the ingest processes.
        assignment: Redirects actors to the ingest processes.
        wait_until_served: Waits until the ingest processes serve, and returns their addresses; empty if they have
            ended.
        tell: Sets the function that records the ends of ingest processes as events of the run.
    """

    address: str
    assignment: ActorAssignment
    wait_until_served: Callable[[], Sequence[str]]
    tell: Callable[[NoteEvent], None]


def learner(
    settings: ServingSettings, console: Console, place: RankInfo | None = None, ingest: Ingest | None = None
) -> int:
    """Trains until the end and returns the exit code.

    Args:
        settings: The settings.
        console: The console for the view and the summary.
        place: The place of this process among several ranks; None: a single learner.
        ingest: The ingest processes of a single learner; None: it takes its actors itself.

    Raises:
        RollcastError: If training cannot start or continue.
    """
    # Refuses wrong certificates and tokens before anything is made.
    settings.server_security()
    if place is None:
        return _learn(settings, console, ONE_RANK, ingest)
    check_rank_settings(settings, place)
    with joined_ranks(
        place,
        compared_settings(settings),
        device=settings.device,
        backend=settings.ranks.backend,
        timeout_s=settings.ranks.timeout_s,
        data_timeout_s=settings.ranks.data_timeout_s,
        check_updates=settings.ranks.check_updates,
        advertised_host=settings.advertised_host,
    ) as ranks:
        return _learn(_settings_of_rank(settings, place.rank), console, ranks)


def _settings_of_rank(settings: ServingSettings, rank: int) -> ServingSettings:
    """Returns the settings of a rank: each has its own address, and only rank 0 has the run's shared outputs.

    Raises:
        ConfigurationError: The port does not exist.
    """
    if rank == 0:
        return settings
    file = settings.address_file
    return settings.model_copy(
        update={
            "address": following_address(settings.address, rank, f"rank {rank}"),
            "address_file": None if file is None else file.with_name(f"{file.name}.{rank}"),
            "metrics_address": None,
            "summary_json": None,
            "track": None,
            "eval_interval_s": None,
            "eval_interval_steps": None,
            "eval_patience": None,
            "stop_on": None,
        }
    )


def _learn(settings: ServingSettings, console: Console, ranks: Ranks, ingest: Ingest | None = None) -> int:
    check_settings(settings)  # before the first actor is waited for
    check_places(settings, is_first=ranks.is_first)
    announce = partial(print_line, console.file)
    if settings.spaces_from == "environment":
        spaces = probe_spaces(settings.env_factory(), travel=True)
    else:
        spaces = spaces_of_first_actor(
            settings.address,
            limits=settings.server_limits(),
            timeout_s=settings.collect_timeout_s,
            security=settings.server_security(),
            announcement=settings.announcement(),
            announce=announce,
        )

    def make_actors(policy: TorchPolicy, serving: ServingOptions) -> DistributedActors:
        if ingest is not None:
            if serving.run_history is not None:
                ingest.tell(serving.run_history.note)
            serving = dataclasses.replace(serving, local_address=ingest.address, assignment=ingest.assignment)
        return RemoteDistributedActors(
            policy,
            settings.n_rollout_steps,
            actors_batch_size(settings, policy.spaces, settings.max_actors),
            settings.queue_out_of_sync_factor,
            envs_per_actor=settings.envs_per_actor,
            seed=settings.seed,
            serving=serving,
        )

    with training_run(settings, spaces, make_actors, n_local_actors=0, announce=announce, ranks=ranks) as run:
        if ingest is not None and (addresses := ingest.wait_until_served()):
            announce(f"ingest processes serve actors at {', '.join(addresses)}")
        return run_and_report(
            run,
            settings,
            console,
            serves=settings.when_finished == "serve",
            # Rank 0 shows the run.
            is_shown=ranks.is_first,
            # Several ranks are resumed by the program that starts them, such as torchrun.
            resume_with="learner" if ranks.n_ranks == 1 else "",
        )
