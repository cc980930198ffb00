"""Decides what follows when an actor that was started here ends: a restart with backoff, or the end of the run."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.errors import ActorFailedError

logger = logging.getLogger(__name__)

# An actor that ran for so long has recovered: its failures are counted from the first again.
_RECOVERED_S = 60.0


@dataclass(frozen=True, slots=True)
class ActorEnd:
    """The end of an actor.

    Attributes:
        report: A report for people; its first line is a summary.
        may_recover: True if a restart can help.
        may_be_repeated: True if the next one probably ends so, too: the environment raised, or no process can begin.
    """

    report: str
    may_recover: bool = True
    may_be_repeated: bool = False


class SupervisedActor(Protocol):
    """An actor that can be started any number of times."""

    @property
    def actor_id(self) -> str:
        """The actor's name, which every restart keeps."""

    def launch(self) -> None:
        """Starts the actor."""

    def take_end(self) -> ActorEnd | None:
        """Returns None while the actor runs. Once it has ended, frees its resources and returns its end."""


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
    """A watch over a fixed set of actors. Used by one thread, which calls `look_after` now and then.

    Args:
        actors: The actors, not started.
        max_restarts: The failures in a row of one actor after which it is not started again.
        on_exit: Called with the actor's name and a report, for every actor that ended by itself.
        has_rollouts: Returns whether any rollout has come. Before, no actor is started again once all have failed.
    """

    def __init__(
        self,
        actors: Sequence[SupervisedActor],
        *,
        max_restarts: int,
        on_exit: Callable[[str, str], None],
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
        """Restarts actors that have ended, once their backoff has passed.

        Raises:
            ActorFailedError: An actor has failed more than `max_restarts` times in a row, or cannot recover, or all
                have failed before the first rollout.
        """
        now = time.monotonic()
        for watched in self._watched:
            if watched.restart_at is None:
                end = watched.actor.take_end()
                if end is not None:
                    self._ended(watched, end, now)
            elif now >= watched.restart_at:
                watched.launch()

    def _ended(self, watched: _Watched, end: ActorEnd, now: float) -> None:
        actor_id = watched.actor.actor_id
        if now - watched.started > _RECOVERED_S:
            watched.n_failures, watched.delays = 0, backoff_delays()
        watched.n_failures += 1
        watched.last_end = end
        self._on_exit(actor_id, end.report)
        ends = [other.last_end for other in self._watched]
        if all(one is not None and one.may_be_repeated for one in ends) and not self._has_rollouts():
            watched.restart_at = math.inf
            who = f"actor {actor_id}" if len(ends) == 1 else f"all {len(ends)} actors"
            raise ActorFailedError(f"{who} failed before the first rollout, and none is started again: {end.report}")
        if watched.n_failures > self._max_restarts or not end.may_recover:
            watched.restart_at = math.inf
            raise ActorFailedError(
                f"actor {actor_id} failed and is not started again (failure {watched.n_failures} in a row): "
                f"{end.report}"
            )
        watched.restart_at = now + next(watched.delays)
        logger.warning("%s ended: %s; starting it again", actor_id, end.report.splitlines()[0])
