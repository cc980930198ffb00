"""TLS and tokens of a relay, on both of its sides."""

from pathlib import Path

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import RollcastError, UnauthenticatedError
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.tools.certificates import make_certificates
from tests.integration.learner_fakes import offer
from tests.relays import relaying, send, serve_learner, streaming


def test_a_relay_without_a_token_is_refused_for_good(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("actor:" + "t" * 32)
    tokens.chmod(0o600)
    security = ServerSecurity.from_files(tokens_file=tokens)
    with serve_learner(security=security) as learner:
        with relaying(learner.address, waits=False) as relay, pytest.raises(UnauthenticatedError, match="--token-file"):
            relay.run()
        with relaying(learner.address, client_security=ClientSecurity(token="t" * 32)) as relay:
            with streaming(relay.address) as uplink:
                assert send(uplink, "a", 1).acknowledged_sequence == 1


def test_tls_and_tokens_are_those_of_each_side(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        make_certificates(folder)

    def server_of(folder: Path) -> ServerSecurity:
        return ServerSecurity.from_files(
            tls_cert=folder / "server.pem",
            tls_key=folder / "server.key",
            tls_client_ca=folder / "ca.pem",
            tokens_file=folder / "tokens",
        )

    def client_of(folder: Path) -> ClientSecurity:
        return ClientSecurity(
            tls_ca=folder / "ca.pem",
            tls_cert=folder / "actor.pem",
            tls_key=folder / "actor.key",
            token_file=folder / "actor.token",
        )

    with (
        serve_learner(security=server_of(inside)) as learner,
        relaying(learner.address, server_security=server_of(outside), client_security=client_of(inside)) as relay,
    ):
        with LearnerClient(relay.address, security=client_of(outside)) as client:
            agreement = client.join(offer())
            uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
            assert send(uplink, "a", 1).acknowledged_sequence == 1
            uplink.cancel()
        with LearnerClient(relay.address, security=client_of(inside)) as stranger, pytest.raises(RollcastError):
            stranger.join(offer("b"))
    assert [rollout.actor_id for rollout in learner.take(1)] == ["a"]
