"""Decides by its row in the table of RPCs whether a call is admitted, for servers with threads and with event loops."""

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
    """The steps that each call of a server takes before its handler, by its row in the table of RPCs.

    1. `check_token`: who may not make it is refused before its request is read.
    2. `check_rate`: a client that calls too often is refused.
    3. `request`: a client that does not send its request in time is refused.
    4. `stream` and `unary_call`: its place; a stream whose answers are not taken in time ends.

    `status_of` says how a call ends after an error of any step, or of the handler. Any thread may call.

    Args:
        tokens: Returns the role of each token; None: no call needs one.
        rate: Counts calls.
        half_open: Bounds the calls that wait for their request, which have no place before it has come.
        gate: Gives streams and calls their places, and ends stuck streams.
        refusals: Notes the errors that a limit caused.
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
        """Returns the row of a method."""
        return RPCS.get(method, OTHER_RPC)

    def check_token(self, method: str, metadata: Metadata | None) -> None:
        """Checks the token that came with a call.

        Args:
            method: The method's full name.
            metadata: The call's metadata.

        Raises:
            UnauthenticatedError: The call needs a token, and it has none, or an unknown one.
            PermissionDeniedError: The token's role may not make the call.
        """
        if self._tokens is not None:
            _check_token(self._tokens, token_in(metadata), method, self.rpc(method).role)

    def check_rate(self, peer: str) -> None:
        """Counts a call.

        Raises:
            ThrottledError: There were too many.
        """
        self._rate.check(peer)

    def request(
        self, peer: str, cancel: Callable[[], None], *, is_large: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Holds a call's place while it waits for its request; see `HalfOpenCalls.call`."""
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
        """Returns the status with which a call ends after an error; logs the error if it is not of the tree."""
        if not isinstance(error, RollcastError):
            _log.error("%s failed on a request from %s", method, shown_peer(peer), exc_info=error)
            error = RollcastError(
                f"the learner failed on {method}: {type(error).__name__}: {error}; expected no error; see its log"
            )
        if error.limit:
            self._refusals.note(host_of(peer), error.limit)
        return error_to_status(error)


def decoder(handler: Any, method: str) -> Callable[[bytes], Any] | None:  # noqa: ANN401  # an untyped named tuple
    """Returns the parser of a handler's requests, for a place where a malformed one becomes an error of the tree.

    None: the handler takes bytes.

    gRPC would parse requests in the one thread that serves all completions, and answer INTERNAL.

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
                "the message of rollcast/v1/*.proto; send it again if it was damaged on its way"
            ) from error

    return decode


def no_request(method: str, peer: str) -> MissingMessageError:
    """Returns the error of a call without a request."""
    return MissingMessageError(
        f"{method} from {shown_peer(peer)} came without a request; expected one message; send it"
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
