"""Takes checkpoints that all ranks have agreed on: the trainer of each begins its part after the same update."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.ranks.ranks import Ranks
from rollcast.learner.training.part_keeper import PartKeeper
from rollcast.learner.training.run_keeper import WRITE_TIMEOUT_S, RunKeeper
from rollcast.services.errors import NotReadyError

logger = logging.getLogger(__name__)

# The time that an operator waits until all ranks have come to the next update.
_ROUND_TIMEOUT_S: Final = 55.0


class AgreedCheckpoints:
    """The checkpoints of one of several ranks. Any thread may call `save`; the trainer's calls `take`.

    Args:
        keeper: Writes them, or this rank's parts of them.
        ranks: The ranks.
        actors: Have the newest policy version.
    """

    def __init__(self, keeper: RunKeeper | PartKeeper, ranks: Ranks, actors: DistributedActors) -> None:
        self._keeper = keeper
        self._ranks = ranks
        self._actors = actors
        self._lock = threading.Lock()  # guards the requests
        self._requests: list[Future[tuple[Future[Path], int]]] = []

    def save(self, between_updates: Callable[[], AbstractContextManager[None]]) -> tuple[Path, int]:
        """Asks all ranks for a checkpoint, and waits until it is written; see `SaveCheckpoint`.

        Raises:
            OSError: It cannot be written; the checkpoint before is kept.
            NotReadyError: The ranks do not come to their next update, or it is not written in time.
        """
        del between_updates  # the ranks agree on the moment
        request: Future[tuple[Future[Path], int]] = Future()
        with self._lock:
            self._requests.append(request)
        self._ranks.ask_for_checkpoint()
        try:
            written, version = request.result(_ROUND_TIMEOUT_S)
            return written.result(WRITE_TIMEOUT_S), version
        except FutureTimeoutError as error:
            raise NotReadyError(
                "the checkpoint of all ranks is not written in time; expected every rank to come to its next update, "
                "and a disk that is fast enough; try again"
            ) from error

    def take(self) -> None:
        """Begins the checkpoint on which the ranks have agreed; logs an error if the disk is full."""
        with self._lock:
            requests, self._requests = self._requests, []
        try:
            written = self._keeper.begin_agreed()
        except (OSError, NotReadyError) as error:
            logger.error("no checkpoint is written: %s; the one before is kept", error)  # noqa: TRY400  # says it all
            for request in requests:
                request.set_exception(error)
            return
        for request in requests:
            request.set_result((written, self._actors.policy_version))
