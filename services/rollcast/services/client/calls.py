"""Makes calls over a channel with deadlines, and converts gRPC's errors to rollcast's."""

from collections.abc import Generator
from typing import Any, Self

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import LONGEST_WAIT_S
from rollcast.services.rpcs import OTHER_RPC, RPCS
from rollcast.services.security.security import ClientSecurity
from rollcast.services.wire.error_status import errors_of_calls


class Client:
    """A channel to a server, and the calls over it. Safe from many threads.

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        timeout_s: Deadline of ordinary calls, in seconds. A call with a longer deadline in `RPCS` keeps that deadline.
        security: Certificates and token.

    Raises:
        ConfigurationError: The address is malformed, a file of `security` cannot be used, or `timeout_s` is not above 0
            and at most 2,000,000.
    """

    def __init__(self, address: str, timeout_s: float, security: ClientSecurity) -> None:
        if not 0 < timeout_s <= LONGEST_WAIT_S:  # NaN too
            raise ConfigurationError(
                f"timeout_s is {timeout_s}; expected a number of seconds above 0 and at most {LONGEST_WAIT_S:.0f}; "
                "correct it"
            )
        self.address = address
        self._timeout_s = timeout_s
        self._channel = make_channel(address, security)
        # The stubs of the called services, by full name.
        self._stubs: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel and ends its open streams."""
        self._channel.close()

    def _call(self, rpc: str, request: object, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401  # the response, whose type the stubs do not know
        """Makes a call: "/rollcast.v1.LearnerService/GetStatus".

        Args:
            rpc: The call's key in `RPCS`.
            request: The request.
            timeout_s: The deadline, in seconds; None: the deadline in `RPCS`.
        """
        with errors_of_calls(self.address):
            return self._begin(rpc, request, timeout_s)

    def _responses(self, rpc: str, request: object) -> Generator[Any, None, None]:
        """Yields the responses of a stream, with the deadline in `RPCS`. Closing the iterator cancels the call."""
        with errors_of_calls(self.address):
            call = self._begin(rpc, request, None)
            try:
                yield from call
            finally:
                call.cancel()

    def _begin(self, rpc: str, request: object, timeout_s: float | None) -> Any:  # noqa: ANN401  # as above
        service, _, name = rpc.removeprefix("/").partition("/")
        deadline_s = RPCS.get(rpc, OTHER_RPC).deadline_of(self._timeout_s) if timeout_s is None else timeout_s
        return getattr(self._stubs[service], name)(request, timeout=deadline_s)
