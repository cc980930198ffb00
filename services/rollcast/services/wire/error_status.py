"""Maps errors to gRPC statuses and back. google.rpc.ErrorInfo contains the error's class."""

import contextlib
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rollcast.services import errors
from rollcast.services.errors import RollcastError
from rollcast.services.limits.limits import MAX_NAME_LENGTH, MAX_REASON_LENGTH
from rollcast.services.limits.texts import shortened
from rollcast.services.wire.seal import SealedMessage, parse_sealed

_Message = TypeVar("_Message", bound=SealedMessage)

ERROR_DOMAIN: Final = "rollcast.v1"
# The key, in the metadata of an ErrorInfo, of the limit's name in `rollcast.services.limits.limits`.
_LIMIT_KEY: Final = "limit"

# The status travels twice in the trailing metadata (text and detail), whose hard limit is 16 KiB in every language.
_MAX_MESSAGE_BYTES: Final = 2048

STATUS_CODES: Final[dict[type[RollcastError], grpc.StatusCode]] = {
    errors.RollcastError: grpc.StatusCode.INTERNAL,
    errors.InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTensorError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidSpaceError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTurnError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidRolloutError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MissingMessageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnreadableMessageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SpacesMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProtocolMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownActorError: grpc.StatusCode.NOT_FOUND,
    errors.DuplicateSequenceError: grpc.StatusCode.ALREADY_EXISTS,
    errors.NameTakenError: grpc.StatusCode.ALREADY_EXISTS,
    errors.ActorReplacedError: grpc.StatusCode.ABORTED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.LimitExceededError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ThrottledError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotReadyError: grpc.StatusCode.UNAVAILABLE,
    errors.DamagedMessageError: grpc.StatusCode.UNAVAILABLE,
    errors.RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TrainingEndedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AddressInUseError: grpc.StatusCode.UNAVAILABLE,
    errors.LearnerUnreachableError: grpc.StatusCode.UNAVAILABLE,
    errors.ContainerEngineError: grpc.StatusCode.UNAVAILABLE,
    errors.SlurmError: grpc.StatusCode.UNAVAILABLE,
    errors.RecordingError: grpc.StatusCode.DATA_LOSS,
    errors.ActorFailedError: grpc.StatusCode.ABORTED,
    errors.CollectTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.CollectInterruptedError: grpc.StatusCode.ABORTED,
    errors.RankLostError: grpc.StatusCode.UNAVAILABLE,
    errors.StatisticsError: grpc.StatusCode.NOT_FOUND,
}

# gRPC's text if it reached a server and TLS failed.
_HANDSHAKE: Final = re.compile(r"handshake failed|SSL_ERROR|Verification Check failed")
# gRPC's text if the connection was only closed, by a server that refuses the client's certificate or plain TCP, or by a
# proxy whose learner is down.
_CLOSED: Final = re.compile(r"failed to connect.*(Socket closed|reset by peer)", re.DOTALL)
# gRPC's texts if calls get no answer at all, or a router's or firewall's: no server was reached.
_NOT_REACHED: Final = re.compile(r"handshaker shutdown|timed out|No route to host|[Uu]nreachable")
_NOT_RESOLVED: Final = re.compile(r"errors resolving|DNS resolution failed")
_THIS_MACHINE: Final = ("unix:", "localhost:", "127.", "[::1]:")
_TLS_TO_CHECK: Final = (
    "check --tls-ca, --tls-cert and --tls-key here, and --tls-cert and --tls-client-ca of the learner"
)

_TOO_LARGE: Final = re.compile(r"message larger than max \(\d+ vs\. \d+\)")

_CLASS_BY_NAME: Final = {error_class.__name__: error_class for error_class in STATUS_CODES}

# The errors for a status without rollcast's detail, from gRPC itself, a proxy, or another server.
_CLASS_BY_BARE_CODE: Final[dict[grpc.StatusCode, type[RollcastError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInputError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidInputError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.RefusedError,
    grpc.StatusCode.NOT_FOUND: errors.UnknownActorError,
    grpc.StatusCode.ALREADY_EXISTS: errors.DuplicateSequenceError,
    grpc.StatusCode.ABORTED: errors.ActorReplacedError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    # From gRPC itself, if a server has more calls than threads. A message that is too large has another text.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ThrottledError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ProtocolMismatchError,
    # From gRPC itself, for malformed frames.
    grpc.StatusCode.INTERNAL: errors.UnreadableMessageError,
}


def status_code(error: RollcastError) -> grpc.StatusCode:
    """Returns the status code of an error's class, or of its nearest base class in `STATUS_CODES`.

    Args:
        error: Any `RollcastError`, including subclasses in other modules.
    """
    return next(STATUS_CODES[base] for base in type(error).__mro__ if base in STATUS_CODES)


def error_to_status(error: RollcastError) -> status_pb2.Status:
    """Makes the rich status of an error: code, message, and an `ErrorInfo` with the class and the exceeded limit.

    Args:
        error: The error. The message is cut to 2 KiB.

    Returns:
        The status, for `grpc_status.rpc_status.to_status`.
    """
    reason = next(base.__name__ for base in type(error).__mro__ if base in STATUS_CODES)
    detail = any_pb2.Any()
    metadata = {_LIMIT_KEY: error.limit} if error.limit else {}
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=metadata))
    encoded = str(error).encode("utf-8", "replace")
    if len(encoded) > _MAX_MESSAGE_BYTES:
        encoded = encoded[:_MAX_MESSAGE_BYTES] + b" [...]"
    code, _ = status_code(error).value
    return status_pb2.Status(code=code, message=encoded.decode("utf-8", "ignore"), details=[detail])


def error_from_status(serialized: bytes, target: str) -> RollcastError:
    """Rebuilds an error from the rich status of `error_to_status`.

    Args:
        serialized: The status, serialised.
        target: The address of the sender, for the message.

    Returns:
        An error of the class that the sender raised; a plain `RollcastError` if the status does not contain the class.
    """
    try:
        status = status_pb2.Status.FromString(serialized)
    except DecodeError as error:
        return errors.UnreadableMessageError(
            f"{target} sent {len(serialized)} bytes that do not parse as a google.rpc.Status ({error}); expected one; "
            "reconnect"
        )
    info = _info_of(status)
    error_class = errors.RollcastError if info is None else _CLASS_BY_NAME.get(info.reason, errors.RollcastError)
    return error_class(shortened(status.message, MAX_REASON_LENGTH), limit=_limit_of(info))


def error_from_rpc(rpc_error: grpc.RpcError, target: str) -> RollcastError:
    """Rebuilds the error that ended a call.

    Args:
        rpc_error: The error that gRPC raised.
        target: The called address, for the message.

    Returns:
        An error of the class that the server raised, if the status contains the class; otherwise of the class for the
        code. UNAVAILABLE, DEADLINE_EXCEEDED and CANCELLED become a `LearnerUnreachableError`, unless a rollcast server
        sent them.
    """
    if not isinstance(rpc_error, grpc.Call):
        return errors.LearnerUnreachableError(
            f"the call to the learner at {target} broke off: {rpc_error!r}; expected an answer; reconnect with backoff"
        )
    code, details = rpc_error.code(), rpc_error.details() or ""
    info = _info_from_trailer(rpc_error)
    error_class = _CLASS_BY_NAME.get(info.reason) if info is not None else None
    if info is not None and error_class is not None:
        return error_class(details, limit=_limit_of(info))
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.LearnerUnreachableError(
            f"the learner at {target} did not answer in time ({details}); expected an answer by the deadline; check "
            "that it runs and is not overloaded, that no firewall blocks its port, or give a longer timeout"
        )
    if code is grpc.StatusCode.CANCELLED:
        return errors.LearnerUnreachableError(
            f"the learner at {target} ended the call ({details}); expected an answer; it may be stopping: reconnect "
            "with backoff"
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unreachable(details, target)
    return _bare(code, details, target)


@contextlib.contextmanager
def errors_of_calls(target: str) -> Iterator[None]:
    """Converts gRPC's exceptions in the `with` block to errors of `rollcast.services.errors`.

    Args:
        target: The called address, for the message.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, target) from error
    except RollcastError:
        raise
    except ValueError as error:  # from gRPC, for a call on a closed channel, which another thread may have closed
        raise errors.LearnerUnreachableError(
            f"the connection to {target} has been closed on this side ({error}); expected an open one; connect again"
        ) from error


def _bare(code: grpc.StatusCode, details: str, target: str) -> RollcastError:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE.search(details):
        return errors.LimitExceededError(
            f"a message between this client and the learner at {target} is too large ({details}); expected at most the "
            "number in brackets; send less at once",
            limit="max_message_bytes",
        )
    bare_class = _CLASS_BY_BARE_CODE.get(code, RollcastError)
    return bare_class(f"the learner at {target} answered {code.name}: {details}")


def let_go(error: grpc.RpcError) -> None:
    """Frees the error of a cancelled call, and the call itself, which occupies its connection until it is freed.

    gRPC keeps the error with the call, and the error's traceback refers to the call. The garbage collector may free
    this cycle late, or never if it is off.
    """
    error.__traceback__ = None


def parse_response(message_class: type[_Message], serialized: bytes) -> _Message:
    """Parses a server's message in the caller's thread, because in gRPC's thread every error would become INTERNAL.

    Args:
        message_class: The class of the message.
        serialized: The message.

    Raises:
        DamagedMessageError: The message does not match its digest.
        UnreadableMessageError: The bytes do not parse as the message.
    """
    try:
        return parse_sealed(message_class, serialized)
    except DecodeError as error:
        raise errors.UnreadableMessageError(
            f"{len(serialized)} received bytes do not parse as {message_class.__name__} ({error}); expected one; they "
            "may have been damaged in transit: try again"
        ) from error


def _unreachable(details: str, target: str) -> errors.LearnerUnreachableError:
    if _HANDSHAKE.search(details):
        return errors.LearnerUnreachableError(
            f"the learner at {target} and this client do not agree on TLS ({details}); expected TLS on both sides or "
            "on neither, with certificates that are valid now, name this address and come from authorities that the "
            f"other side knows; {_TLS_TO_CHECK}"
        )
    if _CLOSED.search(details) and target.startswith("unix:"):
        # Connections of unix sockets never use TLS.
        return errors.LearnerUnreachableError(
            f"the server at {target} closed the connection at once ({details}); expected a rollcast learner; it may be "
            "stopping, or another program listens there: try again with backoff, or correct the address"
        )
    if _CLOSED.search(details):
        return errors.LearnerUnreachableError(
            f"the server at {target} closed the connection at once ({details}); expected a rollcast learner; either "
            "it is a proxy and the learner behind it is down: start the learner; or learner and client do not agree "
            f"on TLS: {_TLS_TO_CHECK}"
        )
    if _NOT_RESOLVED.search(details):
        return errors.LearnerUnreachableError(
            f"no learner answers at {target} ({details}); expected a name that this machine can resolve; correct the "
            "name, or give the IP address of the learner's machine"
        )
    if _NOT_REACHED.search(details):
        return errors.LearnerUnreachableError(
            f"no learner answers at {target} ({details}); expected a rollcast learner there; correct the address, or "
            "open its port in the firewall of the learner's machine"
        )
    advice = "start one with `rollcast learner`, or correct the address"
    if "Connection refused" in details and not target.startswith(_THIS_MACHINE):
        advice += "; if it runs, give it an --address that other machines reach, such as 0.0.0.0:PORT"
    return errors.LearnerUnreachableError(
        f"no learner answers at {target} ({details}); expected a rollcast learner there; {advice}"
    )


def _info_from_trailer(call: grpc.Call) -> error_details_pb2.ErrorInfo | None:
    """Returns rollcast's google.rpc detail of a call; None if the call has no such detail."""
    for key, value in call.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            return _info_of(status_pb2.Status.FromString(value))
        except DecodeError:
            return None
    return None


def _limit_of(info: error_details_pb2.ErrorInfo | None) -> str:
    return "" if info is None else shortened(info.metadata.get(_LIMIT_KEY, ""), MAX_NAME_LENGTH)


def _info_of(status: status_pb2.Status) -> error_details_pb2.ErrorInfo | None:
    """Returns rollcast's detail of a status; None if it is missing or does not parse."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        try:
            if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
                return info
        except DecodeError:
            return None
    return None
