"""Supplies an actor's environments from clients that dial in: a server, and the places of their environments."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.services.environments.dialled import Farewell
from rollcast.services.environments.latencies import Latencies
from rollcast.services.errors import InvalidSpaceError, RollcastError, SpacesMismatchError
from rollcast.services.inference.inference import InferenceSource
from rollcast.services.limits.limits import Limits
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import EnvironmentSpaces

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DialIn:
    """The addresses and limits for environments that dial in.

    Attributes:
        address: The address to serve.
        security: TLS and tokens for clients.
        websocket_address: The address for WebSockets; None: no WebSockets.
        batch_size: The largest number of environments that act together; None: no limit.
    """

    address: str
    security: ServerSecurity
    websocket_address: str | None = None
    batch_size: int | None = None


class DialledSupply:
    """Supplies environments that dial in at an address, with the interface of `EnvironmentSupply`.

    Only the acting thread uses the supply.

    Args:
        dial_in: The addresses and limits.
        n_envs: Number of places; None: the learner decides.
        stall_s: Seconds that a client may take for a turn.
        inference: Computes the policies of other actors; None: no inference for others.

    Raises:
        AddressInUseError: Another server has the address.
        ConfigurationError: The server cannot listen at the address, or cannot use the TLS files.
    """

    def __init__(
        self, dial_in: DialIn, n_envs: int | None, *, stall_s: float, inference: InferenceSource | None = None
    ) -> None:
        self._n_envs = n_envs
        self.environments = DialledEnvironments(address=dial_in.address, stall_s=stall_s, batch_size=dial_in.batch_size)
        # At most a stream for each environment, the same number for actors that ask, and a few for health checks.
        limits = Limits(max_actors=max(n_envs or 0, Limits().max_actors))
        self._server = EnvironmentServer(
            dial_in.address,
            self.environments,
            websocket_address=dial_in.websocket_address,
            inference=inference,
            limits=limits,
            security=dial_in.security,
        )
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The served address, with the real port in place of port 0."""
        return self._server.address

    @property
    def addresses(self) -> str:
        """All addresses that clients may dial, as text for messages."""
        url = self._server.websocket_url
        return self.address if url is None else f"{self.address} and {url}"

    @property
    def latencies(self) -> Latencies:
        """The recent waiting times of environments for their actions."""
        return self._server.latencies

    @property
    def inference_latencies(self) -> Latencies:
        """The recent waiting times of other actors for their answers."""
        return self._server.inference_latencies

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment; call `wait` first."""
        return self.environments.spaces

    @property
    def n_envs(self) -> int | None:
        """Number of places; None: the learner decides."""
        return self._n_envs

    def take(self, n_envs: int) -> DialledEnvironments:
        """Returns the environments, with `n_envs` places; the supply closes them."""
        self.environments.agree(n_envs)
        return self.environments

    def wait(self, is_active: Callable[[], bool]) -> bool:
        """Waits for a client; returns False once `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        return self.environments.wait_for_clients(is_active)

    def serve(self, act: Callable[[], bool], *, is_active: Callable[[], bool], stays: bool = False) -> bool:
        """Acts while clients are connected. Without clients, the actor leaves the learner and so frees its slot.

        Args:
            act: Joins the learner and acts, until training has ended, no client is connected, or `is_active` returns
                False; returns whether training has ended.
            is_active: Called at least every second while no client is connected.
            stays: Whether clients wait for the next run when training has ended.

        Returns:
            True if training has ended.

        Raises:
            RollcastError: An error of `act`, unless it is about the clients' spaces. The clients receive it, too.
        """
        while self.wait(is_active):
            try:
                has_ended = act()
            except (SpacesMismatchError, InvalidSpaceError) as error:
                _log.warning("the learner refuses the clients' spaces, and the clients receive this error: %s", error)
                self.environments.refuse(error)
                continue
            except RollcastError as error:
                self.environments.end(error)
                raise
            if has_ended and not stays:
                self.environments.end(Farewell(reason="training has ended", training_ended=True))
                return True
            if not is_active():  # `close` informs the clients
                return has_ended
            # Clients that dial in now wait for the next run, or until the actor has joined the learner again.
            self.environments.agree(0)
            if has_ended:
                return True
            _log.info("left the learner: no client is connected")
        return False

    def close(self) -> None:
        """Ends all clients, and the server. Idempotent."""
        self.environments.close()
        self._server.stop()
