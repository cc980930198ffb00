import re

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from rollcast.services import errors
from rollcast.services.errors import LearnerUnreachableError, LimitExceededError, NotReadyError, RollcastError
from rollcast.services.limits.limits import MAX_NAME_LENGTH, MAX_REASON_LENGTH
from rollcast.services.wire.error_status import (
    ERROR_DOMAIN,
    STATUS_CODES,
    error_from_rpc,
    error_from_status,
    error_to_status,
    status_code,
)


def tree(root=RollcastError):
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def test_every_error_has_a_code():
    assert set(tree()) == set(STATUS_CODES)


def test_a_subclass_made_elsewhere_has_its_base_classes_code_and_name():
    class TooManyError(LimitExceededError):
        pass

    assert status_code(TooManyError("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert received(TooManyError("x")).__class__ is LimitExceededError


class FakeCall(grpc.RpcError, grpc.Call):
    def __init__(self, code, details, trailer=()):
        self._code, self._details, self._trailer = code, details, trailer

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailer


for _name in ("initial_metadata", "is_active", "time_remaining", "cancel", "add_callback"):
    setattr(FakeCall, _name, lambda *_: None)
FakeCall.__abstractmethods__ = frozenset()


def received(error):
    status = error_to_status(error)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return error_from_rpc(
        FakeCall(code, status.message, (("grpc-status-details-bin", status.SerializeToString()),)), "there:1"
    )


def test_a_status_from_elsewhere_is_cut_where_it_is_received():
    detail = any_pb2.Any()
    info = error_details_pb2.ErrorInfo(
        reason="LimitExceededError", domain=ERROR_DOMAIN, metadata={"limit": "l" * 10**6}
    )
    detail.Pack(info)
    error = error_from_status(status_pb2.Status(message="x" * 10**6, details=[detail]).SerializeToString(), "there:1")
    assert type(error) is LimitExceededError
    assert len(str(error)) == MAX_REASON_LENGTH
    assert len(error.limit) == MAX_NAME_LENGTH


@pytest.mark.parametrize("error_class", list(STATUS_CODES))
def test_every_error_survives_the_wire(error_class):
    error = received(error_class("x is 3; expected 4; change it"))
    assert type(error) is error_class
    assert str(error) == "x is 3; expected 4; change it"


def test_a_long_message_is_cut_to_fit_the_trailer():
    assert len(error_to_status(NotReadyError("é" * 9000)).SerializeToString()) < 3000


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (grpc.StatusCode.UNAVAILABLE, LearnerUnreachableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, LearnerUnreachableError),
        (grpc.StatusCode.CANCELLED, LearnerUnreachableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ThrottledError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ProtocolMismatchError),
        (grpc.StatusCode.INTERNAL, errors.UnreadableMessageError),
        (grpc.StatusCode.DATA_LOSS, RollcastError),
    ],
)
def test_bare_codes_name_the_target(code, error_class):
    error = error_from_rpc(FakeCall(code, "no such luck"), "there:1")
    assert type(error) is error_class
    assert "there:1" in str(error)
    assert "no such luck" in str(error)


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ("Connection refused", "^no learner answers at there:1"),
        ("failed to connect to all addresses; last error: Socket closed", "learner behind it is down.* agree on TLS"),
        ("failed to connect ...: Handshake read failed (Socket closed)", "learner behind it is down.* agree on TLS"),
        (
            "failed to connect ...: (sendmsg: Connection reset by peer (104))",
            "learner behind it is down.* agree on TLS",
        ),
        ("failed to connect ...: Ssl handshake failed", "^the learner at there:1 and this client do not agree on TLS"),
    ],
)
def test_missing_server_closed_connection_and_failed_tls_differ(details, message):
    error = error_from_rpc(FakeCall(grpc.StatusCode.UNAVAILABLE, details), "there:1")
    assert re.search(message, str(error))
    at_socket = str(error_from_rpc(FakeCall(grpc.StatusCode.UNAVAILABLE, details), "unix:/tmp/learner.sock"))
    assert ("TLS" in at_socket) == ("Ssl" in details), "connections of unix sockets never use TLS"


@pytest.mark.parametrize(
    ("details", "target", "advice"),
    [
        ("...: Connection refused", "there:1", "`rollcast learner`.*if it runs, give it an --address that other"),
        ("...: Connection refused", "localhost:1", "`rollcast learner`, or correct the address$"),
        ("...: tcp handshaker shutdown", "there:1", "open its port in the firewall"),
        ("...: connect() timed out", "there:1", "open its port in the firewall"),
        ("...: getsockopt(SO_ERROR): No route to host", "there:1", "open its port in the firewall"),
        ("...: Network is unreachable", "there:1", "open its port in the firewall"),
        ("errors resolving there:1: [field:hostname ...]", "there:1", "correct the name, or give the IP address"),
        ("...: Failed parsing HTTP/2", "there:1", "`rollcast learner`, or correct the address$"),
    ],
)
def test_the_advice_fits_what_the_network_did(details, target, advice):
    message = str(error_from_rpc(FakeCall(grpc.StatusCode.UNAVAILABLE, details), target))
    assert message.startswith(f"no learner answers at {target} ({details}); ")
    assert re.search(advice, message)


def test_an_answer_that_does_not_come_may_be_a_firewalls_work():
    error = error_from_rpc(FakeCall(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "there:1")
    assert "no firewall blocks its port" in str(error)


def test_a_message_that_grpc_refuses_for_its_size():
    error = error_from_rpc(
        FakeCall(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 4)"), "there:1"
    )
    assert (type(error), error.limit) == (LimitExceededError, "max_message_bytes")


def test_the_limit_travels():
    error = received(errors.InvalidTensorError("33 dimensions", limit="max_rank"))
    assert (type(error), str(error), error.limit) == (errors.InvalidTensorError, "33 dimensions", "max_rank")


def test_a_trailer_that_does_not_parse_is_ignored():
    call = FakeCall(grpc.StatusCode.NOT_FOUND, "x", (("grpc-status-details-bin", b"\xff\xff"),))
    assert type(error_from_rpc(call, "there:1")) is errors.UnknownActorError
