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
    """The way in which environments dial in.

    Attributes:
        address: The address to serve.
        security: TLS and tokens for clients.
        websocket_address: The address to serve WebSockets at; None: none are.
        batch_size: Environments that act at once, at most; None: any number.
    """

    address: str
    security: ServerSecurity
    websocket_address: str | None = None
    batch_size: int | None = None


class DialledSupply:
    """The environments that dial in at an address, as `EnvironmentSupply` is those that an actor makes.

    Only the acting thread uses it.

    Args:
        dial_in: How they dial in.
        n_envs: Number of places; None: the learner decides.
        stall_s: Seconds that a client may take for a turn.
        inference: Computes the policies of other actors; None: of none.

    Raises:
        AddressInUseError: Another server has the address.
        ConfigurationError: The address cannot be taken for another reason, or the TLS files cannot be used.
    """

    def __init__(
        self, dial_in: DialIn, n_envs: int | None, *, stall_s: float, inference: InferenceSource | None = None
    ) -> None:
        self._n_envs = n_envs
        self.environments = DialledEnvironments(address=dial_in.address, stall_s=stall_s, batch_size=dial_in.batch_size)
        # A stream for each environment at most, and as many for actors that ask; a few for those that watch its health.
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
        """The address that is served, with the real port if 0 was asked for."""
        return self._server.address

    @property
    def addresses(self) -> str:
        """All that clients may dial, in words."""
        url = self._server.websocket_url
        return self.address if url is None else f"{self.address} and {url}"

    @property
    def latencies(self) -> Latencies:
        """The times that environments have waited for their actions lately."""
        return self._server.latencies

    @property
    def inference_latencies(self) -> Latencies:
        """The times that other actors have waited for their answers lately."""
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
        """Returns the environments, with this number of places; the supply closes them."""
        self.environments.agree(n_envs)
        return self.environments

    def wait(self, is_active: Callable[[], bool]) -> bool:
        """Waits for a client; returns False once `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        return self.environments.wait_for_clients(is_active)

    def serve(self, act: Callable[[], bool], *, is_active: Callable[[], bool], stays: bool = False) -> bool:
        """Acts for clients while there are some; without any, the learner gives the actor's place to others.

        Args:
            act: Joins the learner and acts, until training has ended, no client is there, or `is_active` returns False;
                returns whether training has ended.
            is_active: Called at least every second while no client is there.
            stays: Whether clients wait for the next run when training has ended.

        Returns:
            True if training has ended.

        Raises:
            RollcastError: `act` raised it, and it is not about the clients' spaces; the clients have been told.
        """
        while self.wait(is_active):
            try:
                has_ended = act()
            except (SpacesMismatchError, InvalidSpaceError) as error:
                _log.warning("the learner refuses the spaces of the clients, which get this error: %s", error)
                self.environments.refuse(error)
                continue
            except RollcastError as error:
                self.environments.end(error)
                raise
            if has_ended and not stays:
                self.environments.end(Farewell(reason="training has ended", training_ended=True))
                return True
            if not is_active():  # its end tells the clients
                return has_ended
            # Those that come now wait for the next run, or until the learner is joined again.
            self.environments.agree(0)
            if has_ended:
                return True
            _log.info("left the learner: no client is connected")
        return False

    def close(self) -> None:
        """Ends all clients, and the server. Idempotent."""
        self.environments.close()
        self._server.stop()
