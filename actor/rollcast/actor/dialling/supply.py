"""Supplies an actor's environments from clients that dial in: a server, and the places of their environments."""

from collections.abc import Callable
from typing import Self

from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.services.environments.dialled import Farewell
from rollcast.services.environments.latencies import Latencies
from rollcast.services.errors import RollcastError
from rollcast.services.limits.limits import Limits
from rollcast.services.security.security import ServerSecurity
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import EnvironmentSpaces


class DialledSupply:
    """The environments that dial in at an address, as `EnvironmentSupply` is those that an actor makes.

    Only the acting thread uses it.

    Args:
        address: The address to serve.
        security: TLS and tokens for clients.
        n_envs: Number of places; None: the learner decides.
        stall_s: Seconds that a client may take for a turn.
        websocket_address: The address to serve WebSockets at; None: none are.

    Raises:
        AddressInUseError: Another server has the address.
        ConfigurationError: The address cannot be taken for another reason, or the TLS files cannot be used.
    """

    def __init__(
        self,
        address: str,
        security: ServerSecurity,
        n_envs: int | None,
        *,
        stall_s: float,
        websocket_address: str | None = None,
    ) -> None:
        self._n_envs = n_envs
        self.environments = DialledEnvironments(address=address, stall_s=stall_s)
        # A stream for each environment at most, and a few for those that watch its health.
        limits = Limits(max_actors=max(n_envs or 0, Limits().max_actors))
        self._server = EnvironmentServer(
            address, self.environments, websocket_address=websocket_address, limits=limits, security=security
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
    def websocket_url(self) -> str | None:
        """The URL for WebSockets; None: there is none."""
        return self._server.websocket_url

    @property
    def latencies(self) -> Latencies:
        """The times that environments have waited for their actions lately."""
        return self._server.latencies

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces of each environment; call `wait` first."""
        return self.environments.spaces

    @property
    def n_envs(self) -> int | None:
        """Number of places; None: the learner decides."""
        return self._n_envs

    def take(self, n_envs: int) -> DialledEnvironments:
        """Returns the environments, with so many places; the supply closes them."""
        self.environments.agree(n_envs)
        return self.environments

    def wait(self, is_active: Callable[[], bool]) -> bool:
        """Waits until a client is there; returns False once `is_active` returns False.

        Args:
            is_active: Called at least every second.
        """
        return self.environments.wait_for_clients(is_active)

    def rest(self) -> None:
        """Takes all places back: those that come now wait for the next run, or until the learner is joined again."""
        self.environments.agree(0)

    def end(self, reason: RollcastError | Farewell) -> None:
        """Tells all clients why no more actions come. The first reason counts."""
        self.environments.end(reason)

    def close(self) -> None:
        """Ends all clients, and the server. Idempotent."""
        self.environments.close()
        self._server.stop()
