"""Adds a token to the metadata of every call, `authorization: Bearer TOKEN`, and reads it."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

_KEY: Final = "authorization"
_SCHEME: Final = "Bearer "

Metadata = Iterable[tuple[str, str | bytes]]


def token_in(metadata: Metadata | None) -> str | None:
    """Returns the token of a call; None if the call has no token, or several."""
    tokens = [value for key, value in metadata or () if key == _KEY]
    if len(tokens) != 1 or not isinstance(tokens[0], str) or not tokens[0].startswith(_SCHEME):
        return None
    return tokens[0].removeprefix(_SCHEME)


def with_token(token: str) -> Metadata:
    """Returns metadata with only a token."""
    return ((_KEY, f"{_SCHEME}{token}"),)


class _WithToken(grpc.ClientCallDetails):
    """The details of a call, with the token added."""

    def __init__(self, details: Any, token: str) -> None:  # noqa: ANN401  # an untyped named tuple
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = (*(details.metadata or ()), *with_token(token))
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class BearerInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # generic in the stubs only
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Sends the token with every call. A stream sends it once, when it opens.

    gRPC's own call credentials refuse channels without TLS, which `--insecure` and loopback connections use.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def _call(self, continuation: Callable[..., Any], details: object, request: object) -> Any:  # noqa: ANN401
        return continuation(_WithToken(details, self._token), request)

    intercept_unary_unary = _call  # type: ignore[assignment]  # one for all: only their results differ
    intercept_unary_stream = _call  # type: ignore[assignment]
    intercept_stream_unary = _call  # type: ignore[assignment]
    intercept_stream_stream = _call  # type: ignore[assignment]
