"""When an actor that was started here has ended: started again with backoff, or the end of the run."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rollcast.actor.connection.backoff import backoff_delays
from rollcast.services.errors import ActorFailedError

logger = logging.getLogger(__name__)

# An actor that lived this long has recovered: its next failure is its first again.
_RECOVERED_S = 60.0


@dataclass(frozen=True, slots=True)
class ActorEnd:
    """How an actor ended.

    Attributes:
        report: What is known of it; the first line says it in short.
        may_recover: Whether starting it again can help.
    """

    report: str
    may_recover: bool = True


class SupervisedActor(Protocol):
    """An actor that can be started any number of times."""

    @property
    def actor_id(self) -> str:
        """Its name, which it keeps."""

    def launch(self) -> None:
        """Starts it."""

    def take_end(self) -> ActorEnd | None:
        """None while it runs. Once it has ended, lets go of what is left of it and says how."""


@dataclass(slots=True)
class _Watched:
    actor: SupervisedActor
    started: float = 0.0
    delays: Iterator[float] = field(default_factory=backoff_delays)
    n_failures: int = 0
    # None: it was launched, and has not been found ended.
    restart_at: float | None = None

    def launch(self) -> None:
        self.actor.launch()
        self.started, self.restart_at = time.monotonic(), None


class Supervision:
    """Watches a fixed set of actors. Used by one thread, which calls `look_after` now and then.

    Args:
        actors: Whom to watch; none of them is started yet.
        max_restarts: How often an actor may fail in a row before it is lost for good.
        on_exit: Called with the actor's name and what is known of its end, for every one that ended unasked.
    """

    def __init__(
        self, actors: Sequence[SupervisedActor], *, max_restarts: int, on_exit: Callable[[str, str], None]
    ) -> None:
        self._watched = [_Watched(actor) for actor in actors]
        self._max_restarts = max_restarts
        self._on_exit = on_exit

    def start(self) -> None:
        """Starts every actor."""
        for watched in self._watched:
            watched.launch()

    def look_after(self) -> None:
        """Starts again what has ended, when its backoff has passed.

        Raises:
            ActorFailedError: An actor has failed more than `max_restarts` times in a row, or cannot recover.
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
        self._on_exit(actor_id, end.report)
        if watched.n_failures > self._max_restarts or not end.may_recover:
            watched.restart_at = math.inf
            raise ActorFailedError(
                f"actor {actor_id} failed and is not started again (failure {watched.n_failures} in a row): "
                f"{end.report}"
            )
        watched.restart_at = now + next(watched.delays)
        logger.warning("%s ended: %s; starting it again", actor_id, end.report.splitlines()[0])
