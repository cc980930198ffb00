"""Reacts to the end of a local actor: restarts it with backoff, or ends the run."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.errors import ActorFailedError
from rollcast.services.joining.activity import ActorFailure

logger = logging.getLogger(__name__)

# An actor that has run this long has recovered: its failures are counted from the first again.
_RECOVERED_S = 60.0
# Before the first rollout, all actors may have the same error. Each restart then waits this long for the others' ends.
_OTHERS_S = 5.0


@dataclass(frozen=True, slots=True)
class ActorEnd:
    """The end of an actor.

    Attributes:
        report: The description of the end; its first line is a summary.
        may_recover: True if a restart can help.
        may_be_repeated: True if a restart would probably fail, too: the environment raised, or no process can begin.
        failure: The exception that ended it, if it reported one. `report` does not repeat its traceback.
    """

    report: str
    may_recover: bool = True
    may_be_repeated: bool = False
    failure: ActorFailure | None = None


class SupervisedActor(Protocol):
    """An actor that can be started many times."""

    @property
    def actor_id(self) -> str:
        """The actor's name, which is the same after a restart."""

    def launch(self) -> None:
        """Starts the actor."""

    def take_end(self) -> ActorEnd | None:
        """Returns None while the actor runs. After its end, frees its resources and returns the end."""


@dataclass(slots=True)
class _Watched:
    actor: SupervisedActor
    started: float = 0.0
    delays: Iterator[float] = field(default_factory=backoff_delays)
    n_failures: int = 0
    last_end: ActorEnd | None = None
    # None while it runs, as far as is known.
    restart_at: float | None = None

    def launch(self) -> None:
        self.actor.launch()
        self.started, self.restart_at = time.monotonic(), None


class Supervision:
    """A watch over a fixed set of actors. Used by one thread, which calls `look_after` repeatedly.

    Args:
        actors: The actors, not yet started.
        max_restarts: The number of consecutive failures after which an actor is not restarted.
        on_exit: Called with the actor's name and its end for every actor that ended unexpectedly.
        has_rollouts: Returns whether any rollout has arrived. Until then, the failure of all actors ends the run.
    """

    def __init__(
        self,
        actors: Sequence[SupervisedActor],
        *,
        max_restarts: int,
        on_exit: Callable[[str, ActorEnd], None],
        has_rollouts: Callable[[], bool] = lambda: True,
    ) -> None:
        self._watched = [_Watched(actor) for actor in actors]
        self._max_restarts = max_restarts
        self._on_exit = on_exit
        self._has_rollouts = has_rollouts

    def start(self) -> None:
        """Starts every actor."""
        for watched in self._watched:
            watched.launch()

    def look_after(self) -> None:
        """Restarts ended actors after their backoff.

        Raises:
            ActorFailedError: An actor has failed more than `max_restarts` times in a row, or cannot recover, or all
                failed before the first rollout.
        """
        now = time.monotonic()
        for watched in self._watched:
            if watched.restart_at is None:
                end = watched.actor.take_end()
                if end is not None:
                    self._ended(watched, end, now)
            elif now >= watched.restart_at:
                assert watched.last_end is not None
                summary = watched.last_end.report.splitlines()[0]
                # Only now: until then, another actor's end may end the run.
                logger.warning("%s ended: %s; restarting it", watched.actor.actor_id, summary)
                watched.launch()

    def _ended(self, watched: _Watched, end: ActorEnd, now: float) -> None:
        actor_id = watched.actor.actor_id
        if now - watched.started > _RECOVERED_S:
            watched.n_failures, watched.delays = 0, backoff_delays()
        watched.n_failures += 1
        watched.last_end = end
        self._on_exit(actor_id, end)
        ends = [other.last_end for other in self._watched]
        if all(one is not None and one.may_be_repeated for one in ends) and not self._has_rollouts():
            watched.restart_at = math.inf
            who = f"actor {actor_id}" if len(ends) == 1 else f"all {len(ends)} actors"
            raise ActorFailedError(f"{who} failed before the first rollout, and will not be restarted: {end.report}")
        if watched.n_failures > self._max_restarts or not end.may_recover:
            watched.restart_at = math.inf
            raise ActorFailedError(
                f"actor {actor_id} failed and will not be restarted (failure {watched.n_failures} in a row): "
                f"{end.report}"
            )
        delay_s = next(watched.delays)
        if end.may_be_repeated and not self._has_rollouts():
            delay_s = max(delay_s, _OTHERS_S)
        watched.restart_at = now + delay_s
