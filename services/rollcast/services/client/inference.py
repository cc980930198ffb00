"""The client of central inference. It sends and receives serialised messages."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from rollcast.services.client.calls import Client
from rollcast.services.limits.limits import CALL_TIMEOUT_S
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity


class InferenceClient(Client):
    """A client of rollcast.v1.InferenceService. Safe from many threads.

    Args:
        address: "host:port", "unix:/path" or "file:/path".
        security: Certificates and token.

    Raises:
        ConfigurationError: The address is malformed, or a file of `security` cannot be used.
    """

    def __init__(self, address: str, *, security: ClientSecurity = PLAIN_CLIENT) -> None:
        super().__init__(address, CALL_TIMEOUT_S, security)
        infer = self._channel.stream_stream("/rollcast.v1.InferenceService/Infer", None, None)
        self._stubs = {"rollcast.v1.InferenceService": SimpleNamespace(Infer=infer)}

    def infer(self, requests: Iterator[bytes]) -> Any:  # noqa: ANN401  # a grpc.Call that is an iterator, too
        """Opens a stream. Iteration over the stream raises gRPC's errors; see `errors_of_calls`.

        Args:
            requests: The serialised messages; another thread iterates over them.
        """
        return self._begin("/rollcast.v1.InferenceService/Infer", requests, None)
