"""Checks whether a server admits a call, by its entry in `RPCS`, for threaded and asyncio servers."""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from rollcast.services.address import shown_peer
from rollcast.services.errors import (
    MissingMessageError,
    PermissionDeniedError,
    RollcastError,
    UnauthenticatedError,
    UnreadableMessageError,
)
from rollcast.services.limits.call_rate import CallRate
from rollcast.services.limits.half_open_calls import HalfOpenCalls
from rollcast.services.limits.refusals import Refusals, host_of
from rollcast.services.limits.stream_gate import CallPlace, StreamGate
from rollcast.services.rpcs import OTHER_RPC, RPCS, Rpc
from rollcast.services.security.bearer import Metadata, token_in
from rollcast.services.security.tokens import Role, Tokens
from rollcast.services.wire.error_status import error_to_status

_log = logging.getLogger(__name__)


class Admission:
    """The checks of each call before its handler, by its entry in `RPCS`.

    1. `check_token`: refuses an unauthorised caller before it reads the request.
    2. `check_rate`: refuses a client that calls too often.
    3. `request`: refuses a client that does not send its request in time.
    4. `stream` and `unary_call`: hold the call's place, and end a stream whose client does not read answers in time.

    `status_of` returns the status for an error of a check or of the handler. Safe from any thread.

    Args:
        tokens: Returns the role of each token; None: no call needs a token.
        rate: Counts calls.
        half_open: Limits the calls that wait for their request, which do not have a place yet.
        gate: Gives streams and calls their places, and ends stuck streams.
        refusals: Records the errors that a limit caused.
    """

    def __init__(
        self, tokens: Tokens | None, rate: CallRate, half_open: HalfOpenCalls, gate: StreamGate, refusals: Refusals
    ) -> None:
        self._tokens = tokens
        self._rate = rate
        self._half_open = half_open
        self._gate = gate
        self._refusals = refusals

    @staticmethod
    def rpc(method: str) -> Rpc:
        """Returns the entry of a method in `RPCS`."""
        return RPCS.get(method, OTHER_RPC)

    def check_token(self, method: str, metadata: Metadata | None) -> None:
        """Checks the token of a call.

        Args:
            method: The method's full name.
            metadata: The call's metadata.

        Raises:
            UnauthenticatedError: The call needs a token, and has no token or an unknown token.
            PermissionDeniedError: The token's role may not make the call.
        """
        if self._tokens is not None:
            _check_token(self._tokens, token_in(metadata), method, self.rpc(method).role)

    def check_rate(self, peer: str) -> None:
        """Counts a call.

        Raises:
            ThrottledError: The caller, or all callers together, made too many calls.
        """
        self._rate.check(peer)

    def request(
        self, peer: str, cancel: Callable[[], None], *, is_large: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Counts a call as half open while it waits for its request; see `HalfOpenCalls.call`."""
        return self._half_open.call(peer, cancel, is_large=is_large)

    def stream(
        self, method: str, peer: str, cancel: Callable[[], None]
    ) -> contextlib.AbstractContextManager[CallPlace]:
        """Holds the place of a stream; see `StreamGate.stream`."""
        return self._gate.stream(method, peer, cancel)

    def unary_call(self, method: str) -> contextlib.AbstractContextManager[None]:
        """Holds the place of a unary call, unless it is a probe; see `StreamGate.unary_call`."""
        return contextlib.nullcontext() if self.rpc(method).is_probe else self._gate.unary_call()

    def status_of(self, error: Exception, method: str, peer: str) -> status_pb2.Status:
        """Returns the status with which a call ends after an error. Logs an unforeseen error."""
        if not isinstance(error, RollcastError):
            _log.error("%s failed on a request from %s", method, shown_peer(peer), exc_info=error)
            error = RollcastError(
                f"the learner failed on {method}: {type(error).__name__}: {error}; expected no error; see its log"
            )
        if error.limit:
            self._refusals.note(host_of(peer), error.limit)
        return error_to_status(error)


def decoder(handler: Any, method: str) -> Callable[[bytes], Any] | None:  # noqa: ANN401  # an untyped named tuple
    """Returns the parser of a handler's requests, which raises a `RollcastError` for a malformed request.

    None: the handler takes bytes.

    gRPC's own parsing would run in the only thread that serves completions, and would answer INTERNAL to malformed
    requests.

    Args:
        handler: The handler.
        method: The method's full name, for messages.
    """
    deserializer = handler.request_deserializer
    if deserializer is None:
        return None

    def decode(serialized: bytes) -> object:
        try:
            return deserializer(serialized)
        except DecodeError as error:
            raise UnreadableMessageError(
                f"{method} got {len(serialized)} bytes that do not parse ({error}); expected its request message; send "
                "the message of rollcast/v1/*.proto; send it again if it was damaged in transit"
            ) from error

    return decode


def no_request(method: str, peer: str) -> MissingMessageError:
    """Returns the error of a call without a request."""
    return MissingMessageError(
        f"{method} from {shown_peer(peer)} arrived without a request; expected one message; send it"
    )


def _check_token(tokens: Tokens, token: str | None, method: str, needed: Role | None) -> None:
    if needed is None:
        return
    if token is None:
        raise UnauthenticatedError(
            f"the call of {method} has no token; expected 'authorization: Bearer TOKEN' in its metadata; set "
            "ROLLCAST_TOKEN or --token-file"
        )
    role = tokens.role_of(token)
    if role is None:
        raise UnauthenticatedError(
            f"the token of the call of {method} is unknown to this learner; expected one from its tokens file; "
            "correct it, or add it there"
        )
    if role not in (needed, Role.OPERATOR):
        others = "" if needed is Role.OPERATOR else f"{needed.value} or "
        raise PermissionDeniedError(
            f"the token's role is {role.value}, which may not call {method}; expected {others}operator; use the "
            "token of such a role"
        )
