"""Makes calls over a channel: deadlines, and gRPC's errors turned into errors of the tree."""

from collections.abc import Callable, Generator
from typing import Any, Self

from rollcast.services.client.channel import make_channel
from rollcast.services.errors import ConfigurationError
from rollcast.services.limits.limits import LONGEST_WAIT_S
from rollcast.services.security.security import ClientSecurity
from rollcast.services.wire.error_status import errors_of_calls


class Client:
    """A channel to a server, and the calls over it. Safe from many threads.

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        timeout_s: Deadline of every unary call, in seconds.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; open streams end."""
        self._channel.close()

    def _call(self, method: Callable[..., Any], request: object, *, timeout_s: float | None = None) -> Any:  # noqa: ANN401  # the response, whose type the stubs do not know
        with errors_of_calls(self.address):
            return method(request, timeout=self._timeout_s if timeout_s is None else timeout_s)

    def _responses(
        self, method: Callable[..., Any], request: object, *, timeout_s: float | None = None
    ) -> Generator[Any, None, None]:
        """Yields the responses of a stream; closing the iterator cancels the call."""
        with errors_of_calls(self.address):
            call = method(request, timeout=timeout_s)
            try:
                yield from call
            finally:
                call.cancel()
