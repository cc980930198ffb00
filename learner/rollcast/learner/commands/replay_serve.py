"""`rollcast replay serve`: serves a replay buffer that actors fill and other learners sample."""

import contextlib
import logging
import signal
import time
from typing import IO

from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.experience.replayed import MAX_TRAJECTORIES, buffer_metrics
from rollcast.learner.replay.demonstrations import load_recording
from rollcast.learner.replay.inserter import ReplayInserter
from rollcast.learner.replay.served import serve_buffers
from rollcast.learner.replay.substeps import SubstepBuffers, make_buffers
from rollcast.learner.serving.first_actor import spaces_of_first_actor
from rollcast.learner.settings.replay_serve import ReplayServeSettings
from rollcast.learner.writers.prometheus import add_actors, add_values
from rollcast.services.metrics.families import Families
from rollcast.services.metrics.serving import served_metrics
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.replay.replay import ACTORS
from rollcast.services.security.security import ServerSecurity
from rollcast.services.spaces.spaces import EnvironmentSpaces

logger = logging.getLogger(__name__)

# Seconds between two looks at the buffer and at the request to stop.
_LOOK_S = 0.25


class _Stopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """A signal arrived before the server was made."""


def replay_serve(settings: ReplayServeSettings, output: IO[str]) -> int:
    """Serves until SIGTERM, Ctrl-C, or LearnerService.Stop; returns the exit code: 0, or 130 after Ctrl-C.

    Raises:
        RollcastError: If the buffer or the network cannot be made, the file cannot be read, or the address cannot be
            bound.
    """
    del output  # it logs
    stops: list[RemoteDistributedActors] = []

    def stop() -> None:
        if not stops:
            raise _Stopped
        # the actors stay, and wait for the next buffer at this address
        for actors in stops:
            actors.leave_waiting()
            actors.interrupt()

    def cancel_waits() -> None:
        for actors in stops:
            actors.cancel_waits()

    with stop_on_signals(stop, cancel_waits) as received:
        try:
            _serve(settings, stops)
        except _Stopped:
            logger.info("stopped before the buffer was served")
    return 130 if signal.SIGINT in received else 0


def watch(buffers: SubstepBuffers, actors: RemoteDistributedActors) -> None:
    """Reports waits while no rollout is inserted, until the actors are interrupted.

    Args:
        buffers: The buffers by substep key, which the actors fill.
        actors: The started actors.
    """
    while not actors.interrupted:
        inserted = _inserted(buffers)
        time.sleep(_LOOK_S)
        if _inserted(buffers) != inserted:
            continue
        with actors.waiting.waiting_for("rollouts"):
            while not actors.interrupted and _inserted(buffers) == inserted:
                actors.waiting.explain(_limiter_wait(buffers) or actors.explain_wait())
                time.sleep(_LOOK_S)


def _inserted(buffers: SubstepBuffers) -> int:
    return sum(buffer.info().inserted for buffer in buffers.values())


def _limiter_wait(buffers: SubstepBuffers) -> str:
    """Returns the reason why the actors wait for a rate limiter; empty if no limiter blocks them."""
    for key, buffer in buffers.items():
        wait = buffer.wait_of(ACTORS)
        if wait is not None:
            whose = f"{key}: " if len(buffers) > 1 else ""
            return f"the replay buffer to take rollouts in: {whose}{wait.reason}"
    return ""


def _serve(settings: ReplayServeSettings, stops: list[RemoteDistributedActors]) -> None:
    security = settings.server_security()
    spaces = _spaces(settings, security)
    buffers = make_buffers(
        settings.replay,
        spaces,
        n_rollout_steps=settings.n_rollout_steps,
        batch_size=settings.batch_size,
        n_envs=MAX_TRAJECTORIES,
        discount=settings.discount,
        seed=settings.seed,
        frame_stack=settings.frame_stack,
    )
    # It acts uniformly at random, so its weights have no effect; they are few, because every actor receives them.
    spec = PolicySpec(network=settings.network, hidden_sizes=(1,), frame_stack=settings.frame_stack)
    policy = TorchPolicy(spaces, spec)
    policy.set_uniform_exploration(True)
    if settings.initial_data is not None:
        load_recording(buffers, settings.initial_data, spaces)
    actors = RemoteDistributedActors(
        policy,
        settings.n_rollout_steps,
        1,  # no batch is collected
        envs_per_actor=settings.envs_per_actor,
        seed=settings.seed,
        serving=ServingOptions(
            addresses=(settings.address,),
            max_actors=settings.max_actors,
            security=security,
            announcement=settings.announcement(),
            limits=settings.server_limits(),
            destination=ReplayInserter(buffers),
            replay=serve_buffers(buffers, spaces, n_rollout_steps=settings.n_rollout_steps),
        ),
    )
    stops.append(actors)

    def collect() -> Families:
        families = Families()
        add_values(families, buffer_metrics(buffers))
        add_actors(families, actors.actor_infos)
        return families

    with contextlib.ExitStack() as stack:
        stack.enter_context(actors)
        stack.enter_context(served_metrics(settings.metrics_address, collect, logger.info))
        n_entries = sum(buffer.info().capacity for buffer in buffers.values())
        where = ", ".join(actors.addresses)
        logger.info("serving a replay buffer of %d entries at %s; a restart begins with a new buffer", n_entries, where)
        watch(buffers, actors)
    n_lost = sum(buffer.size for buffer in buffers.values())
    logger.info("ended: the %d entries in the replay buffer were in memory only, and are gone", n_lost)


def _spaces(settings: ReplayServeSettings, security: ServerSecurity) -> EnvironmentSpaces:
    if settings.spaces_from == "environment":
        return probe_spaces(settings.env_factory(), travel=True)
    return spaces_of_first_actor(
        settings.address,
        limits=settings.server_limits(),
        timeout_s=settings.first_actor_timeout_s,
        security=security,
        announcement=settings.announcement(),
        announce=logger.info,
    )
