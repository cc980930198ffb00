"""`rollcast train` and `rollcast learner`: the process around training.

Imports little before torch, so that the forkserver starts during that import.
"""

import os
from typing import IO, TYPE_CHECKING

from rollcast.learner.ranks.rank_info import rank_info, refuse_ranks
from rollcast.services.process.imports import uncollected_imports

if TYPE_CHECKING:
    from rollcast.learner.settings.learner import ServingSettings
    from rollcast.learner.settings.train import TrainSettings


def train_here(settings: "TrainSettings", output: IO[str]) -> int:
    """Trains with actors on this machine, and serves a page if `dashboard` is set. Returns the exit code.

    Raises:
        RollcastError: If training cannot start or continue.
    """
    refuse_ranks(os.environ, "rollcast train")
    if settings.actor_kind == "subprocess" and settings.start_method in (None, "forkserver"):
        from rollcast.learner.actors.forkserver import start_forkserver

        # it starts on another core while this process imports torch
        start_forkserver()
    with uncollected_imports():
        from rich.console import Console

        from rollcast.learner.commands.train import train

    console = Console(file=output)
    if not settings.dashboard:
        return train(settings, console)
    from rollcast.tools.dashboard.local import dashboard_beside

    # Refuses wrong certificates and tokens before the page starts.
    settings.server_security()
    # The page starts on another core while this process makes the environment and the policy.
    with dashboard_beside(settings) as dashboard:
        return train(settings, console, local_address=dashboard.learner_address, link=dashboard.link)


def serve_actors(settings: "ServingSettings", output: IO[str]) -> int:
    """Trains with the actors that connect; under torchrun, as one of several ranks. Returns the exit code.

    Raises:
        RollcastError: If training cannot start or continue.
    """
    place = rank_info(os.environ)
    if place is not None:
        # Set before the import of torch, which otherwise logs a stack trace when another rank closes a connection.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if place is not None or not settings.ingest_processes:
        with uncollected_imports():
            from rich.console import Console

            from rollcast.learner.commands.learner import learner

        return learner(settings, Console(file=output), place)
    from rollcast.tools.relay.ingest import ingest_processes

    # They start on other cores while this process imports torch.
    with ingest_processes(settings) as (processes, address):
        with uncollected_imports():
            from rich.console import Console

            from rollcast.learner.commands.learner import Ingest, learner

        ingest = Ingest(address, processes, processes.wait_until_served, processes.tell)
        return learner(settings, Console(file=output), ingest=ingest)
