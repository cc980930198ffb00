"""A fleet of actors, whose size a scaler decides, as Kubernetes and KEDA would run it."""

import logging
import threading
from collections.abc import Callable
from typing import Final

import grpc

from tests.chaos.processes import SupervisedActor
from tests.keda import Keda

logger = logging.getLogger(__name__)

_ASK_S: Final = 0.25
_TIMEOUT_S: Final = 10.0
_END_TIMEOUT_S: Final = 60.0


class Fleet:
    """Actors that come and go as the scaler says. One thread asks it.

    The learner always waits for these actors: their steps are slow. So the scaler is to want more and more of them, and
    never fewer, whatever dies.

    Args:
        address: Where the scaler is asked.
        start: Starts an actor, by its number.
        fewest: The scaler's bound.
        most: The scaler's bound.

    Attributes:
        actors: All actors that there were, by number.
        n_answers: The answers so far.
        wrong: What the scaler should not have said.
        changed: Notified after each answer.
    """

    def __init__(self, address: str, start: Callable[[int], SupervisedActor], *, fewest: int, most: int) -> None:
        self.actors: list[SupervisedActor] = []
        self.n_answers = 0
        self.wrong: list[str] = []
        self.changed = threading.Condition()
        self._address, self._start_actor, self._most = address, start, most
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-fleet", daemon=True)
        for number in range(fewest):
            self.actors.append(start(number))
        self._thread.start()

    def wait_until_full(self, timeout_s: float) -> bool:
        """Returns True if the scaler has wanted its most actors within this time; there is no way back from that."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.actors) == self._most, timeout_s)

    def close(self) -> None:
        """Asks no longer. The actors stay."""
        self._stop.set()
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            # it has no keepalive: a connection that has gone silent is not used again
            with Keda(self._address, timeout_s=_TIMEOUT_S) as keda:
                try:
                    while not self._stop.wait(_ASK_S):
                        self._follow(keda.replicas(len(self.actors)))
                except grpc.RpcError as error:  # KEDA changes nothing then
                    logger.info("no answer: %s", error)

    def _follow(self, wanted: int) -> None:
        there = len(self.actors)
        if not there <= wanted <= self._most:
            self.wrong.append(f"the scaler wanted {wanted} actors in answer {self.n_answers}; there were {there}")
        self.actors.extend(self._start_actor(number) for number in range(there, wanted))
        with self.changed:
            self.n_answers += 1
            self.changed.notify_all()
