"""Wrong, expired and missing certificates and tokens, and roles that are too small: on every RPC that is served."""

import importlib
import pkgutil
import re

import grpc
import pytest

import rollcast.v1
from rollcast.services.client.channel import make_channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, PermissionDeniedError, UnauthenticatedError
from rollcast.services.rpcs import RPCS
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.security.tokens import Role
from rollcast.tools.certificates import make_certificates
from tests.attacks.field_walk import served_methods
from tests.integration.learner_fakes import serve
from tests.processes import DEADLINE_S

ALL = sorted(RPCS)
GUARDED = [method for method in ALL if RPCS[method].role is not None]
REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Folders of certificates: ours, those of another authority, and some that have expired."""
    root = tmp_path_factory.mktemp("keys")
    for name, days in (("ours", 1), ("theirs", 1), ("expired", -1)):
        make_certificates(root / name, days=days)
    return root


def server_security(folder, client_ca, **changes):
    files = {"tls_cert": folder / "server.pem", "tls_key": folder / "server.key", "tokens_file": folder / "tokens"}
    return ServerSecurity.from_files(**files, tls_client_ca=client_ca, **changes)


def client_security(folder, *, ca=None, **changes):
    files = {"tls_cert": folder / "actor.pem", "tls_key": folder / "actor.key"}
    return ClientSecurity(**({"tls_ca": ca or folder / "ca.pem", **files} | changes))


@pytest.fixture
def learner(keys):
    """Serves everything there is with mutual TLS and tokens."""
    security = server_security(keys / "ours", keys / "ours/ca.pem")
    with serve("localhost:0", security=security, replay={}) as learner:
        learner.source.publish(1, {})
        yield learner


def outcomes(address, security, methods=ALL):
    """The status code of a call of each with one empty request; every shape of call looks the same from outside."""
    with make_channel(address, security) as channel:
        return {method: outcome(channel, method) for method in methods}


def outcome(channel, method):
    call = channel.stream_stream(method)(iter([b""]), timeout=DEADLINE_S)
    try:
        next(call, None)
    except grpc.RpcError as error:
        return error.code()
    call.cancel()
    return grpc.StatusCode.OK


def names_of(methods):
    return {f"/{method.containing_service.full_name}/{method.name}" for method in methods}


def test_the_table_names_every_rpc_that_is_served_and_no_other(learner, keys):
    """The server names those that it serves; our own files have all, served or not."""
    viewer = client_security(keys / "ours", token_file=keys / "ours/viewer.token")
    served = names_of(served_methods(learner.address, viewer))
    for module in pkgutil.iter_modules(rollcast.v1.__path__, "rollcast.v1."):
        if module.name.endswith("_pb2"):
            for service in importlib.import_module(module.name).DESCRIPTOR.services_by_name.values():
                served |= names_of(service.methods)
    assert served == set(RPCS)


# The learner's certificate, whose clients it lets in, and what a client shows.
STRANGERS = {
    "shows no certificate": ("ours", "ours", lambda keys: client_security(keys / "ours", tls_cert=None, tls_key=None)),
    "speaks no TLS": ("ours", "ours", lambda _: ClientSecurity()),
    "shows one of another authority": (
        *("ours", "ours"),
        lambda keys: client_security(keys / "theirs", ca=keys / "ours/ca.pem"),
    ),
    "names its own authority as ours": ("ours", "ours", lambda keys: client_security(keys / "theirs")),
    "shows an expired one": (
        "ours",
        "expired",
        lambda keys: client_security(keys / "expired", ca=keys / "ours/ca.pem"),
    ),
    "is shown an expired one": (
        *("expired", None),
        lambda keys: client_security(keys / "expired", tls_cert=None, tls_key=None),
    ),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_no_rpc_answers_a_client_that(keys, who):
    served, lets_in, security = STRANGERS[who]
    client_ca = lets_in and keys / lets_in / "ca.pem"
    with serve("localhost:0", security=server_security(keys / served, client_ca)) as learner:
        assert set(outcomes(learner.address, security(keys)).values()) == {grpc.StatusCode.UNAVAILABLE}


def test_the_right_certificate_gets_as_far_as_the_tokens(learner, keys):
    codes = outcomes(learner.address, client_security(keys / "ours"))
    assert [method for method, code in codes.items() if code is grpc.StatusCode.UNAUTHENTICATED] == GUARDED
    assert grpc.StatusCode.UNAVAILABLE not in codes.values()


@pytest.mark.parametrize(
    "token",
    ["x" * 32, "actor:0123456789abcdef", "0123456789abcdef" * 32],
    ids=["wrong", "with a role before it", "long"],
)
def test_a_token_that_is_nobodys(learner, keys, token):
    codes = outcomes(learner.address, client_security(keys / "ours", token=token), GUARDED)
    assert set(codes.values()) == {grpc.StatusCode.UNAUTHENTICATED}


@pytest.mark.parametrize("role", Role)
def test_roles(learner, keys, role):
    security = client_security(keys / "ours", token_file=keys / f"ours/{role.value}.token")
    for method, code in outcomes(learner.address, security).items():
        if RPCS[method].role in (role, None) or role is Role.OPERATOR:
            assert code not in (*REFUSALS, grpc.StatusCode.UNAVAILABLE), method
        else:
            assert code is grpc.StatusCode.PERMISSION_DENIED, method


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Bearer ")],
        [("authorization", "Basic {token}")],
        [("authorization", "{token}")],
        [("authorization", "bearer {token}x")],
        [("authorization", "Bearer {token}"), ("authorization", "Bearer {token}")],
        [("authorization-bin", b"Bearer")],
        [("x-token", "{token}")],
    ],
)
def test_headers_that_are_not_quite_it(learner, keys, metadata):
    token = (keys / "ours/operator.token").read_text().strip()
    sent = [(key, value if isinstance(value, bytes) else value.format(token=token)) for key, value in metadata]
    with make_channel(learner.address, client_security(keys / "ours")) as channel:
        call = channel.unary_unary("/rollcast.v1.LearnerService/Stop")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=sent, timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert token not in caught.value.details()
    assert "stop" not in learner.control.calls


def test_a_method_that_is_not_in_the_table_is_the_operators(learner, keys):
    viewer = client_security(keys / "ours", token_file=keys / "ours/viewer.token")
    (code,) = outcomes(learner.address, viewer, ["/rollcast.v1.LearnerService/Explode"]).values()
    assert code is grpc.StatusCode.PERMISSION_DENIED


class TestWhatTheClientIsTold:
    def test_no_token(self, learner, keys):
        with LearnerClient(learner.address, security=client_security(keys / "ours")) as client:
            with pytest.raises(UnauthenticatedError, match=r"no token; expected .*set ROLLCAST_TOKEN or --token-file"):
                client.status()
            assert client.is_serving()

    def test_a_role_that_is_too_small(self, learner, keys):
        security = client_security(keys / "ours", token_file=keys / "ours/viewer.token")
        with LearnerClient(learner.address, security=security) as client:
            assert client.status().env_steps == 12
            with pytest.raises(PermissionDeniedError, match=re.escape("role is viewer, which may not call /rollcast")):
                client.stop()
            with pytest.raises(PermissionDeniedError, match="expected actor or operator"):
                next(iter(client.subscribe_policy()))

    @pytest.mark.parametrize("case", ["unknown authority", "expired", "another name"])
    def test_a_handshake_that_fails(self, keys, case):
        ca = {"unknown authority": "theirs", "expired": "expired", "another name": "ours"}[case]
        served = "expired" if case == "expired" else "ours"
        # 127.0.0.2 is the loopback, too, and no name in the certificate
        host = "127.0.0.2" if case == "another name" else "localhost"
        with serve(f"{host}:0", security=server_security(keys / served, None)) as learner:
            security = ClientSecurity(tls_ca=keys / ca / "ca.pem")
            with LearnerClient(learner.address, security=security) as client:
                with pytest.raises(LearnerUnreachableError, match=r"do not agree on TLS .*check --tls-ca"):
                    client.status()

    @pytest.mark.parametrize("case", ["no certificate of its own", "no TLS", "TLS where there is none"])
    def test_sides_that_do_not_ask_for_the_same(self, learner, keys, case):
        security = ClientSecurity() if case == "no TLS" else ClientSecurity(tls_ca=keys / "ours/ca.pem")
        with serve() as plain:
            address = plain.address if case == "TLS where there is none" else learner.address
            with LearnerClient(address, security=security) as client:
                with pytest.raises(LearnerUnreachableError, match=r"do not agree on TLS.*check --tls-ca"):
                    client.status()

    def test_a_name_with_tls_in_it_that_nobody_has(self, keys):
        with LearnerClient("ssl-tls.invalid:1", security=ClientSecurity(tls_ca=keys / "ours/ca.pem")) as client:
            with pytest.raises(LearnerUnreachableError, match="no learner answers"):
                client.status()


@pytest.mark.parametrize("role", Role)
def test_a_client_can_find_out_whether_it_may_operate(learner, keys, role):
    security = client_security(keys / "ours", token_file=keys / f"ours/{role.value}.token")
    with LearnerClient(learner.address, security=security) as client:
        assert client.may_operate() is (role is Role.OPERATOR)
    # it has done nothing by that
    assert learner.control.calls == []


def test_everybody_may_operate_a_learner_without_tokens():
    with serve() as learner, LearnerClient(learner.address) as client:
        assert client.may_operate()


def test_a_client_without_a_token_cannot_find_out(learner, keys):
    with LearnerClient(learner.address, security=client_security(keys / "ours")) as client:
        with pytest.raises(UnauthenticatedError):
            client.may_operate()
