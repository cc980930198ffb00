"""Gets the spaces from the first actor, for a learner on a machine without the environment."""

import threading
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rollcast.services.errors import CollectTimeoutError, NotReadyError, RefusedError
from rollcast.services.joining.join import ActorRole, JoinOffer
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.evaluated import OnEnd
from rollcast.services.process.waiting import LOOK_S
from rollcast.services.rendezvous import Announcement, announced
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.server import make_server
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from rollcast.services.status.description import LearnerDescription
from rollcast.services.status.status import ActorInfo, LearnerStatus, Phase
from rollcast.services.version import software_version

# The time in which running calls may end once an actor has joined.
_GRACE_S = 0.2


def spaces_of_first_actor(
    address: str,
    *,
    limits: Limits,
    timeout_s: float,
    security: ServerSecurity = PLAIN_SERVER,
    announcement: Announcement | None = None,
    announce: Callable[[str], None] = lambda _line: None,
    look_after: Callable[[], None] = lambda: None,
) -> EnvironmentSpaces:
    """Serves at an address until an actor joins, and returns the spaces of its offer.

    The server asks the actor to retry in a moment. By then the learner itself serves at the address.

    Args:
        address: The address at which the learner will listen.
        limits: The learner's limits.
        timeout_s: The seconds to wait for an actor.
        security: The learner's security.
        announcement: A file that tells other machines the address; None: no file.
        announce: Called with a line about the wait.
        look_after: Called at least once a second; an exception ends the wait.

    Raises:
        AddressInUseError: Another process serves the address.
        CollectTimeoutError: No actor joined in time.
    """
    first = _FirstOffer()
    server = make_server(address, sink=first, source=first, control=first, limits=limits, security=security)
    server.start()
    try:
        with announced(server.address, announcement):
            announce(f"waiting for the first actor at {server.address}, to learn the spaces of its environments")
            offer = first.wait_for_offer(timeout_s, look_after)
    finally:
        server.stop(_GRACE_S)
    if offer is None:
        raise CollectTimeoutError(
            f"no actor has joined at {server.address} for {timeout_s:.0f} s, and the learner needs its spaces; "
            "start one with `rollcast actor`, or give the learner the environment with --spaces-from environment"
        )
    return offer.spaces


class _FirstOffer:
    """A placeholder for a learner that waits for spaces: notes the first offer, and asks every client to retry."""

    def __init__(self) -> None:
        self.spaces: EnvironmentSpaces = {}
        self.state_size = 0
        self.frame_stack = 1
        self.ended = False
        self._offered = threading.Event()
        self._offer: JoinOffer | None = None

    def wait_for_offer(self, timeout_s: float, look_after: Callable[[], None]) -> JoinOffer | None:
        """Waits for the first actor's offer, and returns it; None if no actor joined in time."""
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0 and not self._offered.wait(min(left_s, LOOK_S)):
            look_after()
        return self._offer

    def join(self, offer: JoinOffer) -> NoReturn:
        """Notes the offer, and asks the actor to retry. Ignores an evaluator's offer."""
        if self._offer is None and offer.role is ActorRole.ACT:
            self._offer = offer
            self._offered.set()
        self._not_ready()

    def open_stream(self, actor_id: str, incarnation: int, *, peer: str, cancel: Callable[[], None]) -> NoReturn:
        """Asks the client to retry."""
        del actor_id, incarnation, peer, cancel
        self._not_ready()

    def newest(self) -> EncodedPolicy:
        """Asks the client to retry."""
        self._not_ready()

    def subscription(self, *, after_version: int, actor_id: str = "", on_end: OnEnd | None = None) -> NoReturn:
        """Asks the client to retry."""
        del after_version, actor_id, on_end
        self._not_ready()

    def act(
        self,
        observation: Observation,
        *,
        substep_key: str,
        deterministic: bool,
        state: NDArray[np.float32] | None = None,
        previous: Observation | None = None,
    ) -> NoReturn:
        """Asks the client to retry."""
        del observation, substep_key, deterministic, state, previous
        self._not_ready()

    def describe(self) -> LearnerDescription:
        """Asks the client to retry."""
        self._not_ready()

    def status(self) -> LearnerStatus:
        """Returns the status of a learner that waits for its first actor."""
        return LearnerStatus(
            phase=Phase.STARTING,
            waiting_for="the first actor, to learn the spaces of its environments: start one with `rollcast actor`",
            software_version=software_version(),
        )

    def actors(self) -> list[ActorInfo]:
        """Returns an empty list: no actor has joined yet."""
        return []

    def pause(self) -> None:
        """Asks the client to retry."""
        self._not_ready()

    def resume(self) -> None:
        """Asks the client to retry."""
        self._not_ready()

    def save_checkpoint(self) -> tuple[str, int]:
        """Asks the client to retry."""
        self._not_ready()

    def request_stop(self) -> None:
        """Refuses: training has not started."""
        raise RefusedError("training has not started, so there is nothing to stop: end the learner's process instead")

    @staticmethod
    def _not_ready() -> NoReturn:
        raise NotReadyError("the learner is starting; try again with backoff")
